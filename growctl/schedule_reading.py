"""One YAML file of a schedule or of a choice for a block, read: what is refused in it, and its defaults list."""

from collections.abc import Iterator
from os.path import normpath
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar_parser import parse
from yaml import MarkedYAMLError, YAMLError

from growctl.schedule_errors import ScheduleError, did_you_mean, innermost_reason, named_python, shown
from growctl.schedule_files import GROUPS, SHIPPED, find_file

NOT_HYDRA = "hydra's own settings are no part of a schedule"
_RESOLVERS = ("oc.env", "oc.select", "oc.decode")
"""What may stand before the colon of an interpolation: these look things up. Others make new ones up, like the time."""


def read_file(path: Path, label: str) -> DictConfig | None:
    """A YAML file's mapping, its defaults list in the form that hydra wants; None where it holds something else.

    Interpolations are left as they are. Read here and not by hydra, so that the file may have any name and errors have
    a line. Raises ScheduleError.
    """
    try:
        config = OmegaConf.load(path)
    except UnicodeDecodeError:
        raise ScheduleError(f"{label}: is not text in UTF-8; a schedule is a YAML file") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ScheduleError(f"{label}: {where}{error.problem}") from None
    except (OmegaConfBaseException, YAMLError, OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or innermost_reason(error)
        raise ScheduleError(f"{label}: cannot be read: {reason}") from None
    if not isinstance(config, DictConfig):
        return None
    if "hydra" in config:
        raise ScheduleError(f"{label}: hydra: {NOT_HYDRA}")
    refuse_code(OmegaConf.to_container(config, resolve=False), f"{label}: ")
    if "defaults" in config:
        written = OmegaConf.to_container(config, resolve=False)
        assert isinstance(written, dict)
        try:
            config["defaults"] = _defaults(written["defaults"], path)
        except ValueError as error:
            raise ScheduleError(f"{label}: defaults{error}") from None
    return config


def refuse_code(value: Any, where: str, keys: tuple[str, ...] = ()) -> None:
    """Raises ScheduleError where `value`, at `keys`, names Python, or an interpolation in it does more than look up.

    `where` is what the message begins with.
    """
    nested = value
    for key in reversed(keys):
        nested = {key: nested}
    for line in (*named_python(nested), *_foreign_resolvers(nested)):
        raise ScheduleError(f"{where}{line}")


def _foreign_resolvers(value: Any, keys: tuple[Any, ...] = ()) -> Iterator[str]:
    """A line for every text in plain data that has an interpolation by a resolver not in _RESOLVERS."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in entries:
        yield from _foreign_resolvers(below, (*keys, key))
    if isinstance(value, str) and "${" in value:
        for name in _resolvers(parse(value)):
            if name not in _RESOLVERS:
                yield (
                    f"{'.'.join(map(str, keys))} = {shown(value)}: {shown(name)} is not among what a schedule may ask "
                    "for: ${other.key}, ${oc.env:NAME}, ${oc.select:other.key,DEFAULT}, ${oc.decode:TEXT}"
                )


def _defaults(entries: Any, path: Path) -> list[Any]:
    """A defaults list with choices found from the top, whichever file makes them, and with the file itself last.

    Raises ValueError with what is wrong, from the entry's number on.
    """
    if not isinstance(entries, list):
        raise ValueError(f" = {shown(entries)}: must be a list: [quickstart, {{launch: slurm}}, _self_]")
    written: list[Any] = []
    for number, entry in enumerate(entries):
        where = f".{number} = {shown(entry)}: "
        if isinstance(entry, dict) and len(entry) == 1:
            ((key, choice),) = entry.items()
            *keywords, group = str(key).split(" ")
            block = group.removeprefix("/").partition("@")[0]
            if block not in GROUPS:
                raise ValueError(f"{where}no such block{did_you_mean(block, GROUPS)} (blocks: {', '.join(GROUPS)})")
            written.append({" ".join([*keywords, f"/{group.removeprefix('/')}"]): choice})
        elif isinstance(entry, str) and entry.partition("/")[0] not in ("", "hydra"):
            if entry != "_self_" and find_file(entry, (path.parent,)) == Path(normpath(path)):
                hint = "; to start from the shipped one, give the file another name"
                raise ValueError(f"{where}is this file itself{hint if find_file(entry, (SHIPPED,)) else ''}")
            written.append(f"/{entry}" if entry.partition("/")[0] in GROUPS else entry)
        else:
            raise ValueError(f"{where}must be the name of a schedule, {{BLOCK: CHOICE}}, or _self_")
    return written if "_self_" in written else [*written, "_self_"]


def _resolvers(tree: Any) -> Iterator[str]:
    """The names of all resolvers in a parsed interpolation."""
    if type(tree).__name__ == "ResolverNameContext":
        yield tree.getText()
    for child in getattr(tree, "children", None) or ():
        yield from _resolvers(child)
