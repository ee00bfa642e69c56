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
from typing import Any, Self

REMOVED = "***"
"""Stands for what was removed. It has no letters, so that it never equals a user's name."""

SHORTEST_SECRET = 4
"""A shorter value of a secret variable is not looked for elsewhere: it would occur in too many innocent places."""

LONG_NUMBER = 8
"""A number with fewer characters is not taken for a secret."""

NOT_PERSONAL = {"", "root"}
"""User names that tell nothing about a person."""

_PHRASE = (
    r"passw(?:or)?d|passphrase|authorization|cookie|webhook|conn(?:ection)?[_-]?str(?:ing)?|(?<![a-z])dsn(?![a-z])"
    r"|(?-i:[A-Z0-9]_(?:PASS|PWD)(?![\w.-]))"
)
"""In names whose values may hold spaces: what follows is secret to the end of the line."""
_SECRET_WORD = rf"{_PHRASE}|secret|(?:api|access|account|private)[_-]?key|credential"
_SECRET_NAME = re.compile(rf"(?i:{_SECRET_WORD}|token(?!s|iz))|_(?:KEY|AUTH|PAT|PWD)$|(?:^|_)PASS$")
"""Names of variables and keys whose values are secret."""

_QUOTED = r"""(?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
_VALUE = rf"""(?:{_QUOTED}|\\+"[^"\n]*"|\\+'[^'\n]*'|(?P<bare>[^\s"',;}}\]]+))"""
_REST = r"[\w.-]{0,64}"
"""The rest of a name. Without a limit, a long word would take minutes."""
_IS = r"\\*[\"']?[^\S\n]*[:=]"
_LINE = re.compile(rf"(?i)(?P<name>(?:{_PHRASE}){_REST})(?P<between>{_IS}[^\S\n]*)(?:{_QUOTED}|(?=\S)[^\n]+)")
_ASSIGNED = re.compile(rf"(?i)(?P<name>(?:{_SECRET_WORD}){_REST})(?P<between>{_IS}\s*|[\"']?\s+)(?=\S){_VALUE}")
_ASSIGNED_KEY = re.compile(rf"(?P<name>\b[A-Z][A-Z0-9_]*_(?:KEY|AUTH|PAT|TOKEN))(?P<between>{_IS}\s*){_VALUE}")
_ASSIGNED_TOKEN = re.compile(rf"(?i)(?P<name>token)(?P<between>{_IS}\s*|[\"']?(?<=-token)\s+){_VALUE}")
_OVERRIDE = re.compile(
    r"(?P<name>(?:launch\.environment|samples\.prompts)(?:\.\w+)?)(?P<between>[^\S\n]*=[^\S\n]*)(?:\{[^}]*\})?[^\n]*"
)
_ENVIRONMENT = re.compile(rf"(?P<name>\benvironment)(?P<between>{_IS}\s*)\{{[^{{}}]*\}}")
_ENVIRONMENT_BLOCK = re.compile(r"(?:\blaunch\.|[\"'])?\benvironment[\"']?:\s*$")
"""A line of block-style YAML; the lines below it that are further to the right hold the variables."""
_ENTRY = re.compile(r"\s*[\"']?\w+[\"']?:(?=\s|$)")
_NUMBER = re.compile(r"[-+]?[\d.,_]+(?:[eE][-+]?\d+)?[kKmMbBtT]?")
_HARMLESS = {"null", "none", "true", "false"}

_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), REMOVED),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {REMOVED}"),
    (re.compile(r"(?<=://)[^\s\"'<>]*@"), f"{REMOVED}@"),
    (re.compile(r"(://[^\s?\"'<>]*)\?[^\s\"'<>]+"), rf"\1?{REMOVED}"),
    (re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{10,}"), REMOVED),
    (re.compile(r"\b(?:gh[oprsu]|github_pat|glpat|npm|pypi|xox[a-z])[_-][A-Za-z0-9_-]{10,}"), REMOVED),
    (re.compile(r"\b(?:sk-|[rs]k_(?:live|test)_|AIza|ya29\.|GOCSPX-|SG\.)[A-Za-z0-9._-]{10,}"), REMOVED),
    (re.compile(r"(?i)(https?://(?:hooks\.[^\s/\"'<>]+|[^\s\"'<>]*webhook[^\s/\"'<>]*)/)[^\s\"'<>]+"), rf"\1{REMOVED}"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}"), REMOVED),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"), REMOVED),
    (re.compile(r"(?i)(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), REMOVED),
)
"""What secrets and addresses look like wherever they stand, in the order in which they are replaced."""

_OTHER_HOME = re.compile(r"(/(?:home|Users)/)[^/\s\"':,;]+")


def is_secret(name: str) -> bool:
    """Whether the variable or key `name` holds a secret, by its name."""
    return _SECRET_NAME.search(name) is not None


def is_harmless(value: str) -> bool:
    """Whether `value` is a short number or a word such as `true`: it occurs in too many places to be looked for."""
    return value.lower() in _HARMLESS or (len(value) < LONG_NUMBER and _NUMBER.fullmatch(value) is not None)


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
    def of(cls, environment: Mapping[str, str], values: Iterable[str] = ()) -> Self:
        """The redaction for this machine's user, with the secrets in `environment`, and with other secret `values`."""
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
            secrets=tuple(sorted({*values, *(value for name, value in environment.items() if is_secret(name))})),
            homes=tuple(sorted(home for home in homes if home.strip("/"))),
            users=tuple(sorted(names - NOT_PERSONAL)),
        )

    def __call__(self, text: str) -> str:
        """`text` without secrets and identities."""
        text = _without_environment_blocks(text)
        for pattern, replacement in (*self._values, *_SHAPES, *self._identities, (_OTHER_HOME, rf"\1{REMOVED}")):
            text = pattern.sub(replacement, text)
        for assigned in (_OVERRIDE, _ENVIRONMENT, _LINE, _ASSIGNED, _ASSIGNED_KEY):
            text = assigned.sub(_without_value, text)
        return _ASSIGNED_TOKEN.sub(_without_token, text)

    def of_data(self, data: Any, secret: bool = False) -> Any:
        """The data of a JSON document without secrets and identities; if `secret`, without any text."""
        if isinstance(data, dict):
            hidden = {key: secret or key == "environment" or is_secret(key) for key in data}
            return {self(key): self.of_data(value, hidden[key]) for key, value in data.items()}
        if isinstance(data, list):
            return [self.of_data(entry, secret) for entry in data]
        if isinstance(data, str):
            return REMOVED if secret else self(data)
        return data

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


def _without_environment_blocks(text: str) -> str:
    """`text` without the values in every YAML block `environment:`, also in a log whose lines begin with a prefix."""
    lines: list[str] = []
    indent = column = child = -1  # of the line that begins a block, and of the entries in it
    for line in text.split("\n"):
        if column >= 0 and (not line.strip() or _indent(line) > indent or line[column : column + 1].isspace()):
            start = 0 if _indent(line) > indent else column
            prefix, entry = line[:start], line[start:]
            child = _indent(entry) if child < 0 else child
            name = _ENTRY.match(entry)
            if not line.strip():
                lines.append(line)
            elif _indent(entry) == child:  # the others continue a value
                lines.append(f"{prefix}{name[0]} '{REMOVED}'" if name else f"{prefix}{entry[:child]}{REMOVED}")
            continue
        begins = _ENVIRONMENT_BLOCK.search(line)
        indent, column, child = (_indent(line), begins.start(), -1) if begins else (-1, -1, -1)
        lines.append(line)
    return "\n".join(lines)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _without_value(found: re.Match[str]) -> str:
    """Keeps quotes, and adds those that JSON needs after a name in quotes."""
    quoted = found.groupdict().get("quoted") or found["between"]
    quote = quoted[0] if quoted[0] in "\"'" else ""
    return f"{found['name']}{found['between']}{quote}{REMOVED}{quote}"


def _without_token(found: re.Match[str]) -> str:
    """Leaves numbers: `bits_per_token: 1.2` is no secret."""
    bare = found["bare"] or ""
    return found[0] if _NUMBER.fullmatch(bare) or bare.lower() in _HARMLESS else _without_value(found)
