"""Formats the errors of a schedule, one line each: `dotted.path = value: what is allowed`."""

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from growctl.schedule.other_names import no_key_but, our_key
from growctl.schedule.tree import blocks_by_path, user_keys
from growctl.text.formatting import short_count
from growctl.text.suggestion import did_you_mean
from model.errors import UserError

SHOWN_CHARACTERS = 60
REASON_CHARACTERS = 200
SHOWN_PROBLEMS = 20
NAME_ALLOWED = "letters, digits, . _ - (a letter or digit first, 100 at most)"

PYTHON_KEYS = ("_target_", "_partial_", "_convert_", "_recursive_", "_args_")
"""Keys that name code to call in hydra's configurations. growctl never calls it, so it rejects the keys."""

_WORDING = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "finite_number": "must be a finite number",
    "string_type": "must be text; put it in quotes",
    "string_unicode": "must be text that UTF-8 can encode",
    "list_type": "must be a list",
    "model_type": "must be a block of keys",
    "dict_type": "must be a block of keys",
    "invalid_key": "keys must be text",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be {le} or less",
    "literal_error": "must be {expected}",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must be {allowed}",
    "too_short": "must have {min_length} or more entries",
    "too_long": "must have {max_length} or fewer entries",
}
"""Our wording of pydantic's error types. Types that are missing here keep pydantic's wording."""

LOOK_UPS = "${other.key}, ${oc.env:NAME}, ${oc.select:other.key,DEFAULT}, ${oc.decode:TEXT}"
"""The interpolations that a schedule may use."""

_UNRESOLVED = re.compile(r"(\w+) (?:raised )?while resolving interpolation: (.*)")


class ScheduleError(UserError):
    """An invalid schedule. The message has the dotted path, the value and what is allowed, for every problem."""


def describe(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """One line per mistake. A misspelt key counts once: the key that it stands for is not also missing."""
    lines, meant = [], set()
    problems = error.errors(include_url=False)
    for problem in sorted(problems, key=lambda problem: problem["type"] != "extra_forbidden"):
        location = problem["loc"]
        path, value = dotted(location), problem["input"]
        if problem["type"] == "extra_forbidden":
            close, why = _unknown_key(location, root)
            meant.add((*location[:-1], close))
            lines.append(f"{path} = {shown(value)}: {why}")
        elif problem["type"] == "missing":
            if location not in meant:
                lines.append(f"{path}: is missing")
        elif problem["type"] == "value_error":
            # the message of a block names its keys; the message of a single value needs the value in front
            where = (f"{path}: " if isinstance(value, dict) else f"{path} = {shown(value)}: ") if path else ""
            lines += [f"{where}{line}" for line in str(problem["ctx"]["error"]).splitlines()]
        elif location[-1:] == ("[key]",):
            pattern = problem.get("ctx", {}).get("pattern")
            why = f"invalid key; keys here match {pattern}" if pattern else "keys must be text; put this in quotes"
            lines.append(f"{dotted(location[:-1])}: {why}")
        else:
            context = problem.get("ctx", {})
            allowed = NAME_ALLOWED if "." in context.get("pattern", ".") else NAME_ALLOWED.replace(" . ", " ")
            limits = {"allowed": allowed} | {name: _limit(limit) for name, limit in context.items()}
            wording = _WORDING.get(problem["type"], problem["msg"]).format(**limits)
            lines.append(f"{path} = {shown(value)}: {wording}")
    return lines


def named_python(value: Any, keys: tuple[Any, ...] = ()) -> Iterator[str]:
    """One line per key in plain data that names Python to call; `keys` is the path to `value`."""
    if any(str(key).startswith(PYTHON_KEYS) for key in keys[-1:]):
        yield f"{dotted(keys)} = {shown(value)}: {dotted(keys[-1:])} names Python to call; a schedule cannot call any"
        return
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in entries:
        yield from named_python(below, (*keys, key))


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


def path_of(line: str) -> str:
    """The dotted path at the start of a problem's line; empty if there is none."""
    match = re.match(r"([\w.-]+)(?=:| = )", line)
    return match[1] if match else ""


def innermost_reason(error: BaseException) -> str:
    """The message of the innermost cause of an error from hydra: the one that the user can act on."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, IndexError):
        return "the list has no such entry; entries count from 0"
    if isinstance(error, RecursionError):
        return "is nested too deeply, or contains itself"
    if isinstance(error, TypeError):
        return "does not fit; a list stays a list; set its entries by number (stages.0.name=a); none can be deleted"
    key = str(getattr(error, "full_key", None) or "").replace("[", ".").replace("]", "")
    reason = str(error).splitlines()[0]
    if unresolved := _UNRESOLVED.match(reason):
        about_keys = unresolved[1] in ("KeyError", "ConfigKeyError")  # the others describe Python, not the schedule
        reason = unresolved[2].strip('"') if about_keys else f"cannot be resolved; a schedule may use {LOOK_UPS}"
    if reason.startswith("Missing mandatory value"):
        reason = "must be given"
    if reason.startswith("Incompatible key type"):
        reason = "keys must be text"
    return shorten(f"{key}: {reason}" if key else reason, REASON_CHARACTERS)


def shown(value: Any) -> str:
    """A value as YAML writes it, on one line, shortened."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, skipkeys=True, default=str)
    return shorten(text, SHOWN_CHARACTERS)


def shorten(text: str, num_characters: int) -> str:
    """`text`, cut to `num_characters` with `...` at the end. Characters that UTF-8 cannot encode become escapes."""
    text = text[: num_characters + 1].encode(errors="backslashreplace").decode()
    return text if len(text) <= num_characters else f"{text[: num_characters - 3]}..."


def _limit(limit: Any) -> Any:
    if isinstance(limit, float):
        return f"{limit:g}"
    return short_count(limit) if isinstance(limit, int) and limit >= 10**10 else limit


def _unknown_key(location: tuple[int | str, ...], root: type[BaseModel]) -> tuple[str | None, str]:
    """The key of the same block that the user probably meant (None if there is none), and the message."""
    key, parents = str(location[-1]), location[:-1]
    blocks = dict(blocks_by_path(root))
    here = ".".join("N" if isinstance(part, int) else part for part in parents)
    known = list(user_keys(blocks[here]))
    allowed = f"(allowed here: {', '.join(known)})"
    if here == "stages.N" and key in blocks["model"].model_fields:
        return None, f"a stage cannot change this; set model.{key} for all stages"
    if instead := no_key_but(here, key):
        return None, f"no such key; {instead}"
    if (ours := our_key(here, key)) and ours != ".".join(filter(None, (here, key))):
        block, _, name = ours.rpartition(".")
        where = dotted((*parents, name)) if block == here else ours
        return name if block == here else None, f"no such key here; growctl calls it {where} {allowed}"
    homes = [path or "the top level" for path, block in blocks.items() if key in block.model_fields]
    if homes and not difflib.get_close_matches(key, known, n=1, cutoff=0.9):
        return None, f"no such key here; it belongs to {' or '.join(homes)} {allowed}"
    close = next(iter(difflib.get_close_matches(key, known, n=1)), None)
    return close, f"no such key{did_you_mean(key, known)} {allowed}"
