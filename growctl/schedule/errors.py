"""Formats the errors of a schedule, one line each: `dotted.path = value: what is allowed`."""

import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from growctl.schedule.fields import blocks_by_path, user_keys
from growctl.text.suggestion import did_you_mean
from model.errors import UserError

SHOWN_CHARACTERS = 60
SHOWN_PROBLEMS = 20

_WORDING = {
    "missing": "is missing",
    "model_type": "must be a block of keys",
    "bool_type": "must be true or false",
    "dict_type": "must be a block of keys",
    "list_type": "must be a list",
    "too_short": "must have {min_length} or more entries",
    "invalid_key": "must be text",
}
"""Our wording of pydantic's errors about Python types. The other types keep pydantic's: `must be greater than 0`."""

_ALTERNATIVE = re.compile(r"(bool|int|str|none)|(constrained|function)-.*|(list|literal)\[.*|[A-Z]\w*Block", re.DOTALL)
"""What pydantic adds to a location for one of several types that a value may have."""


class ScheduleError(UserError):
    """An invalid schedule. The message has the dotted path, the value and what is allowed, for every problem."""


def describe(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """One line per mistake. A misspelt key counts once: the key that it stands for is not also missing."""
    lines, meant = [], set()
    problems = _of_alternatives(error)
    for location, kind, value, reason in sorted(problems, key=lambda problem: problem[1] != "extra_forbidden"):
        if kind == "extra_forbidden":
            close, reason = _unknown_key(location, root)
            meant.add((*location[:-1], close))
        if kind != "missing" or location not in meant:
            own_keys = kind == "missing" or (kind == "value_error" and isinstance(value, dict))
            lines += [problem_line(location, ... if own_keys else value, line) for line in reason.splitlines()]
    return lines


def _of_alternatives(error: ValidationError) -> list[tuple[tuple[int | str, ...], str, Any, str]]:
    """(location, kind, value, reason) of each mistake in a value. If a value has alternatives, such as a block or a
    word, those are the mistakes inside it, or else one that names them all."""
    found: dict[tuple[int | str, ...], list[tuple[tuple[int | str, ...], str, Any, str]]] = {}
    for problem in error.errors(include_url=False):
        location, kind = problem["loc"], problem["type"]
        wording = _WORDING.get(kind, "").format(**problem.get("ctx", {}))
        reason = wording or re.sub(r"^\w+ should", "must", problem["msg"])
        reason = str(problem["ctx"]["error"]) if kind == "value_error" else reason
        keys = tuple(key for key in location if not _ALTERNATIVE.fullmatch(str(key)))
        whole = next((location[:at] for at, key in enumerate(location) if key not in keys), location)
        found.setdefault(whole, []).append((keys, kind, problem["input"], reason))
    problems = []
    for location, each in found.items():
        inside = [problem for problem in each if problem[0] != location]
        reasons = " or ".join(dict.fromkeys(reason for *_, reason in each)).replace(" or must be ", " or ")
        problems += inside or [(*each[0][:3], reasons)] if len(each) > 1 else each
    return problems


def problem_line(location: Sequence[Any], value: Any, allowed: str) -> str:
    """`dotted.path = value: what is allowed`, without the value if it is `...`."""
    path = dotted([key for key in location if key != "[key]"])
    if not path:
        return allowed
    return f"{path}{'' if value is ... else f' = {shown(value)}'}: {allowed}"


def several(lines: Sequence[str]) -> str:
    """The problems as the rest of a message: one on the same line, several on a line each, SHOWN_PROBLEMS at most."""
    if len(lines) < 2:
        return "".join(lines)
    listed = [*lines[:SHOWN_PROBLEMS], "..."] if len(lines) > SHOWN_PROBLEMS else lines
    return "\n  ".join([f"{len(lines)} problems", *listed])


def dotted(keys: Sequence[Any]) -> str:
    """A dotted path. Keys that are empty or have unprintable characters are quoted."""
    texts = [str(key) for key in keys]
    return ".".join(shorten(text, SHOWN_CHARACTERS) if text.isprintable() and text else shown(text) for text in texts)


def shown(value: Any) -> str:
    """A value as YAML writes it, on one line, shortened."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, skipkeys=True, default=str)
    return shorten(text, SHOWN_CHARACTERS)


def shorten(text: str, num_characters: int) -> str:
    """`text`, cut to `num_characters` with `...` at the end. Characters that UTF-8 cannot encode become escapes."""
    text = text[: num_characters + 1].encode(errors="backslashreplace").decode()
    return text if len(text) <= num_characters else f"{text[: num_characters - 3]}..."


def _unknown_key(location: tuple[int | str, ...], root: type[BaseModel]) -> tuple[str | None, str]:
    """The key of the same block that the user probably meant (None if there is none), and the message."""
    key, blocks = str(location[-1]), dict(blocks_by_path(root))
    here = ".".join("N" if isinstance(part, int) else part for part in location[:-1])
    names = list(user_keys(blocks[here]))
    elsewhere = [path or "the top level" for path, block in blocks.items() if key in block.model_fields]
    hint = f"; it belongs to {' or '.join(elsewhere[:3])}" if elsewhere else did_you_mean(key, names)
    close = next((name for name in names if hint.endswith(f"{name!r}?")), None)
    return close, f"no such key{hint} (allowed here: {', '.join(names)})"
