"""Reads and checks one YAML file of a schedule or block choice, with its defaults list."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import lru_cache
from io import StringIO
from os.path import normpath
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.base import Container, Node
from omegaconf.grammar_parser import parse as parse_interpolation

from growctl.schedule.errors import LOOK_UPS, ScheduleError, dotted, innermost_reason, named_python, shown
from growctl.schedule.files import GROUPS, SHIPPED, find_file
from growctl.text.suggestion import did_you_mean
from model.errors import UserError
from stages.plain_yaml import MOST_VALUES, ODD_TAG, UNREADABLE, parse, read_text, why_unreadable

NOT_HYDRA = "a schedule cannot contain hydra's own settings"
_KIND = "schedule"
_LONGEST_NAME = 255
_OPEN = "???"
"""hydra's mark for a choice that is still open."""
_KEYWORDS = ("optional", "override")
_RESOLVERS = ("oc.env", "oc.select", "oc.decode")
"""The resolvers that an interpolation may use: these only look values up. Others compute new ones, such as the time."""


def read_file(path: Path, label: str) -> dict[str, Any] | None:
    """Reads the mapping in a YAML file, with its defaults list in hydra's form; None if the file holds no mapping.

    Interpolations stay unresolved. growctl reads the file itself, so that it may have any name and errors name the
    line. Raises ScheduleError.
    """
    try:
        content = _content(read_text(path, _KIND))
    except UnicodeDecodeError:
        raise ScheduleError(f"{label}: is not UTF-8 text; a schedule is a YAML file") from None
    except yaml.MarkedYAMLError as error:
        raise ScheduleError(f"{label}: {_yaml_problem(error)}") from None
    except (OSError, *UNREADABLE) as error:
        raise ScheduleError(f"{label}: cannot be read: {_reason(error)}") from None
    if not isinstance(content, dict):
        return None
    if "hydra" in content:
        raise ScheduleError(f"{label}: hydra: {NOT_HYDRA}")
    refuse_code(content, f"{label}: ")
    if "defaults" in content:
        try:
            return content | {"defaults": _defaults(content["defaults"], path)}
        except UserError as error:
            raise ScheduleError(f"{label}: defaults{error}") from None
    return content


@lru_cache(maxsize=256)
def _content(text: str) -> Any:
    """The plain data of a YAML text as OmegaConf takes it, which nobody may change. Raises what `read_file` catches.

    A file is read several times while a schedule is composed, and a shipped one for many schedules.
    """
    data = parse(text, _KIND)
    config = OmegaConf.create(data) if isinstance(data, dict) else OmegaConf.load(StringIO(text))
    return OmegaConf.to_container(config, resolve=False)


def read_plain(path: Path) -> Any:
    """Reads a YAML file that growctl wrote into plain data, with interpolations unresolved.

    Raises ScheduleError if it is no longer valid YAML, OSError if it cannot be read.
    """
    try:
        return deepcopy(_written(path.read_text(encoding="utf-8")))
    except (UserError, *UNREADABLE) as error:
        raise ScheduleError(why_unreadable(error) if isinstance(error, ODD_TAG) else str(error)) from None


@lru_cache(maxsize=256)
def _written(text: str) -> Any:
    """The plain data of a YAML text. `growctl status` reads the schedules of all runs again and again."""
    return parse(text, _KIND)


def _reason(error: Exception) -> str:
    """Why a file cannot be read."""
    if isinstance(error, ODD_TAG):
        return why_unreadable(error)
    return getattr(error, "strerror", None) or innermost_reason(error)


@contextmanager
def bounded_interpolation(where: str) -> Iterator[None]:
    """Limits the values that interpolations may expand to inside the block. Raises ScheduleError, naming `where`.

    Twenty lines that each refer twice to the line before expand to a million values, and OmegaConf has no limit.
    """
    left = MOST_VALUES

    def counting(plain: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            value = plain(*arguments, **named)
            left -= _size(value)
            if left < 0:
                raise _TooMuch
            return value

        return counted

    # the first resolves one reference; the second a whole text, also one that oc.select finds
    hooked = {name: getattr(Container, name) for name in ("_resolve_node_interpolation", "resolve_parse_tree")}
    for name, plain in hooked.items():
        setattr(Container, name, counting(plain))
    try:
        yield
    except _TooMuch:
        raise ScheduleError(f"{where}: its interpolations expand to more than {MOST_VALUES:,} values") from None
    finally:
        for name, plain in hooked.items():
            setattr(Container, name, plain)


class _TooMuch(BaseException):
    """Not an Exception: OmegaConf would treat that as a missing value."""


def _size(node: Any) -> int:
    """The number of values in a node; a long text counts as several."""
    content = node._value() if isinstance(node, Node) else node
    if isinstance(content, dict | list):
        return 1 + sum(map(_size, content.values() if isinstance(content, dict) else content))
    return 1 + (len(content) // 100 if isinstance(content, str) else 0)


def _yaml_problem(error: yaml.MarkedYAMLError) -> str:
    """The YAML error with its line and column."""
    problem, mark = str(error.problem), error.problem_mark
    if tag := re.match("could not determine a constructor for the tag (.*)", problem):
        problem = f"the tag {tag[1]} is not allowed: a schedule is plain data; put text that starts with ! in quotes"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark else problem


def refuse_code(value: Any, where: str, keys: tuple[str, ...] = ()) -> None:
    """Raises ScheduleError if `value`, at `keys`, names Python or has an interpolation that does more than look up.

    The message begins with `where`.
    """
    nested = value
    for key in reversed(keys):
        nested = {key: nested}
    for line in (*named_python(nested), *_foreign_resolvers(nested)):
        raise ScheduleError(f"{where}{line}")


def _foreign_resolvers(value: Any, keys: tuple[Any, ...] = ()) -> Iterator[str]:
    """One line per text in plain data whose interpolation uses a resolver outside _RESOLVERS."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in entries:
        yield from _foreign_resolvers(below, (*keys, key))
    if isinstance(value, str) and "${" in value:
        for name in _resolvers(parse_interpolation(value)):
            if name not in _RESOLVERS:
                yield (
                    f"{dotted(keys)} = {shown(value)}: {shown(name)} is not allowed here; a schedule may use {LOOK_UPS}"
                )


def _defaults(entries: Any, path: Path) -> list[Any]:
    """A defaults list in hydra's form: choices with absolute paths, and `_self_` last unless the list places it.

    Raises UserError with a message that begins with the entry's number.
    """
    if not isinstance(entries, list):
        raise UserError(f" = {shown(entries)}: must be a list: [quickstart, {{launch: slurm}}, _self_]")
    written: list[Any] = []
    for number, entry in enumerate(entries):
        where = f".{number} = {shown(entry)}: "
        if isinstance(entry, dict) and len(entry) == 1:
            written.append(_choice(entry, where))
        elif _is_name(entry) and entry.partition("/")[0] not in ("", "hydra"):
            if entry != "_self_" and find_file(entry, (path.parent,)) == Path(normpath(path)):
                hint = "; to start from the shipped one, give the file another name"
                raise UserError(f"{where}is this file itself{hint if find_file(entry, (SHIPPED,)) else ''}")
            written.append(f"/{entry}" if entry.partition("/")[0] in GROUPS else entry)
        else:
            raise UserError(f"{where}must be the name of a schedule, {{BLOCK: CHOICE}}, or _self_")
    return written if "_self_" in written else [*written, "_self_"]


def _choice(entry: dict[Any, Any], where: str) -> dict[str, Any]:
    """`{BLOCK: CHOICE}` in hydra's form. Raises UserError with a message that begins with `where`."""
    ((key, choice),) = entry.items()
    *keywords, block = str(key).split(" ")
    block = block.removeprefix("/")
    if block not in GROUPS:
        raise UserError(f"{where}no such block{did_you_mean(block, GROUPS)} (blocks: {', '.join(GROUPS)})")
    if not set(keywords) <= set(_KEYWORDS):
        raise UserError(f"{where}only {' or '.join(_KEYWORDS)} may come before the block")
    if choice not in (None, _OPEN) and not all(map(_is_name, choice if isinstance(choice, list) else [choice])):
        raise UserError(f"{where}must be the name of a choice for {block}, or a list of them")
    return {" ".join([*keywords, f"/{block}"]): choice}


def _is_name(value: Any) -> bool:
    """Whether `value` can name a file. hydra's `name@package` cannot: growctl does not allow packages."""
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and "@" not in value and _OPEN not in value


def _resolvers(tree: Any) -> Iterator[str]:
    """The names of all resolvers in a parsed interpolation."""
    if type(tree).__name__ == "ResolverNameContext":
        yield tree.getText()
    for child in getattr(tree, "children", None) or ():
        yield from _resolvers(child)
