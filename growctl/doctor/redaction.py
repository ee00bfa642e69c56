"""Removes secrets and the user's identity from texts that leave the machine."""

import getpass
import json
import os
import pwd
import re
import shlex
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

REMOVED = "***"
"""Stands for what was removed. It has no letters, so that it never equals a user's name."""

SHORTEST_SECRET = 4
"""A shorter value of a secret variable is not looked for elsewhere: it would occur in too many innocent places."""

NOT_PERSONAL = {"", "root"}
"""User names that tell nothing about a person."""

_SECRET_WORD = r"secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credential|authorization"
_SECRET_NAME = re.compile(rf"(?i)({_SECRET_WORD}|token(?!s|iz))|_KEY$|_AUTH$|_PAT$")
"""Names of variables and keys whose values are secret."""

_VALUE = r"""(?P<value>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[^\s"',;}\]]+)"""
_ASSIGNED = re.compile(
    rf"(?i)(?P<name>[\w.-]*(?:{_SECRET_WORD})[\w.-]*)(?P<between>[\"']?(?:\s*[:=]\s*|\s+))(?=\S){_VALUE}"
)
_ASSIGNED_KEY = re.compile(rf"(?P<name>\b[A-Z][A-Z0-9_]*_(?:KEY|AUTH|PAT|TOKEN))(?P<between>[\"']?\s*[:=]\s*){_VALUE}")
_ASSIGNED_TOKEN = re.compile(rf"(?i)(?P<name>[\w.-]*token)(?P<between>[\"']?(?:\s*[:=]\s*|(?<=-token)\s+)){_VALUE}")
_VARIABLE = re.compile(rf"(?P<name>launch\.environment(?:\.\w+)?)(?P<between>\s*=\s*)(?:\{{[^}}]*\}}|{_VALUE})")
_NUMBER = re.compile(r"[\"']?[-+]?[\d.,_]+(?:[eE][-+]?\d+)?[kKmMbBtT]?[\"']?")
_HARMLESS = {"null", "none", "true", "false"}

_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), REMOVED),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {REMOVED}"),
    (re.compile(r"(?<=://)[^\s\"'<>]*@"), f"{REMOVED}@"),
    (re.compile(r"(://[^\s?\"'<>]*)\?[^\s\"'<>]+"), rf"\1?{REMOVED}"),
    (re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{10,}"), REMOVED),
    (re.compile(r"\b(?:gh[oprsu]|github_pat|glpat|npm|pypi|xox[a-z])[_-][A-Za-z0-9_-]{10,}"), REMOVED),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{10,}"), REMOVED),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"), REMOVED),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), REMOVED),
    (re.compile(r"(?i)[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), REMOVED),
)
"""What secrets and addresses look like wherever they stand, in the order in which they are replaced."""

_OTHER_HOME = re.compile(r"(/(?:home|Users)/)[^/\s\"':,;]+")


def is_secret(name: str) -> bool:
    """Whether the variable or key `name` holds a secret, by its name."""
    return _SECRET_NAME.search(name) is not None


@dataclass(frozen=True)
class Redaction:
    """Removes given secrets, home directories and user names, and everything that looks like a secret."""

    secrets: tuple[str, ...] = ()
    """Values to remove wherever they occur."""
    homes: tuple[str, ...] = ()
    """Directories that become `~`."""
    users: tuple[str, ...] = ()
    """Names to remove where they stand as a word."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """The redaction for this machine's user, with the secrets in `environment`."""
        names = {environment.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")}
        homes = {environment.get("HOME", ""), str(Path.home())}
        try:
            account = pwd.getpwuid(os.getuid())
            names |= {account.pw_name, account.pw_gecos.partition(",")[0], getpass.getuser()}
            homes |= {account.pw_dir}
        except (KeyError, OSError):  # a container may run as a user without an account
            pass
        homes |= {os.path.realpath(home) for home in homes if home}
        return cls(
            secrets=tuple(sorted(value for name, value in environment.items() if is_secret(name))),
            homes=tuple(sorted(home for home in homes if home.strip("/"))),
            users=tuple(sorted(names - NOT_PERSONAL)),
        )

    def __call__(self, text: str) -> str:
        """`text` without secrets and identities."""
        for pattern, replacement in (*self._values, *_SHAPES, *self._identities, (_OTHER_HOME, rf"\1{REMOVED}")):
            text = pattern.sub(replacement, text)
        text = _VARIABLE.sub(_without_value, text)
        for pattern in (_ASSIGNED, _ASSIGNED_KEY):
            text = pattern.sub(_without_value, text)
        return _ASSIGNED_TOKEN.sub(_without_token, text)

    @cached_property
    def _values(self) -> list[tuple[re.Pattern[str], str]]:
        secrets = {form for secret in self.secrets if len(secret) >= SHORTEST_SECRET for form in _written_forms(secret)}
        return [(re.compile(alternatives), REMOVED) for alternatives in _longest_first(secrets)]

    @cached_property
    def _identities(self) -> list[tuple[re.Pattern[str], str]]:
        homes = {home.rstrip("/") for home in self.homes}
        patterns = [(re.compile(rf"(?:{each})(?![\w-])"), "~") for each in _longest_first(homes)]
        words = [rf"(?<![^\W_])(?:{each})(?![^\W_])" for each in _longest_first(set(self.users))]
        return patterns + [(re.compile(word, re.IGNORECASE), REMOVED) for word in words]


def _longest_first(words: Iterable[str]) -> list[str]:
    """One pattern for all of `words`, in which the longest match wins; none without words."""
    ordered = sorted(filter(None, words), key=len, reverse=True)
    return ["|".join(map(re.escape, ordered))] if ordered else []


def _written_forms(secret: str) -> set[str]:
    """A secret as it may be written: plain, in JSON, in Python, in a shell and in a URL."""
    forms: tuple[Callable[[str], str], ...] = (
        lambda text: json.dumps(text)[1:-1],
        lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
        lambda text: repr(text)[1:-1],
        shlex.quote,
        urllib.parse.quote,
        urllib.parse.quote_plus,
    )
    return {secret, *(form(secret) for form in forms)}


def _without_value(found: re.Match[str]) -> str:
    return f"{found['name']}{found['between']}{REMOVED}"


def _without_token(found: re.Match[str]) -> str:
    """Leaves numbers: `bits_per_token: 1.2` is no secret."""
    value = found["value"].strip("\"'")
    return found[0] if _NUMBER.fullmatch(value) or value.lower() in _HARMLESS else _without_value(found)
