"""Removes secrets from the commands and schedules that a report shows to others."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REMOVED = "***"
"""Stands for what was removed."""

SHORTEST_SECRET = 8
"""A shorter value of a secret variable is not looked for elsewhere: it would occur in too many innocent places."""

_SECRET_NAME = re.compile(
    r"(?i:passw|passphrase|secret|credential|cookie|webhook|authorization|connection[_-]?str|"
    r"(?:api|access|account|private)[_-]?key|token(?!s|iz))|_(?:KEY|AUTH|PAT|PWD|DSN|PASS)$"
)
"""Names of variables and keys whose values are secret."""

_ASSIGNED = re.compile(r"""(?P<name>[\w.-]+)(?P<sign>=|: )(?:Bearer |Basic )?(?:"[^"]*"|'[^']*'|[^\s"',;}\]]+)""")

_SHAPES = (
    (re.compile(r"(?<=://)[^\s\"'<>]*@"), f"{REMOVED}@"),
    (re.compile(r"(://[^\s?\"'<>]*)\?[^\s\"'<>]+"), rf"\1?{REMOVED}"),
    (re.compile(r"\b(?:hf|gh[oprsu]|github_pat|glpat|npm|pypi|xox[a-z]|sk|AKIA|AIza)[_-]?[\w-]{16,}"), REMOVED),
)
"""What secrets look like wherever they stand."""


def is_secret(name: str) -> bool:
    """Whether the variable or key `name` holds a secret, by its name."""
    return _SECRET_NAME.search(name) is not None


def without_secrets(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """`text` without secrets: those of `environment`, values of secret names, and what looks like one. The home
    directory becomes `~`."""
    for name, value in environment.items():
        if is_secret(name) and len(value) >= SHORTEST_SECRET:
            text = text.replace(value, REMOVED)
    for shape, replacement in _SHAPES:
        text = shape.sub(replacement, text)
    text = text.replace(f"{Path.home()}/", "~/")
    return _ASSIGNED.sub(
        lambda each: f"{each['name']}{each['sign']}{REMOVED}" if is_secret(each["name"]) else each[0], text
    )


def redacted_override(word: str) -> str:
    """A word of a command without secrets; variables for the workers are hidden whatever they hold."""
    name, sign, _ = word.partition("=")
    hides = sign and (name.startswith("launch.environment") or is_secret(name))
    return f"{name}={REMOVED}" if hides else without_secrets(word)


def redacted_data(data: Any) -> Any:
    """A schedule's data without secrets; variables for the workers are hidden whatever they hold."""
    if isinstance(data, dict):
        return {
            key: _hidden(value) if key == "environment" or is_secret(str(key)) else redacted_data(value)
            for key, value in data.items()
        }
    if isinstance(data, list):
        return [redacted_data(entry) for entry in data]
    return without_secrets(data) if isinstance(data, str) else data


def _hidden(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _hidden(value) for key, value in data.items()}
    return REMOVED if data is not None and data != [] else data
