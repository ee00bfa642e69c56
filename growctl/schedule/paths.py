"""The paths in a schedule: a relative one counts from the folder of the file that states it.

On the command line, a relative path counts from the current directory, as in any shell. So does one in a file that
growctl ships, because no text lies beside that. A run stores absolute paths, so that it finds the same files when it is
resumed from another directory.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from growctl.runs_dir import RunPaths
from growctl.schedule.launch_block import HostfileBlock
from growctl.schedule.reading import read_plain
from model.errors import UserError
from stages.corpus.location import LOCAL_SCHEMES, is_path, local_path, local_tokenizer, missing_source

if TYPE_CHECKING:
    from growctl.schedule.compose import Composition

SOURCE, TOKENIZER, HOSTFILE, CHECKPOINT = "data.source", "data.tokenizer", "launch.hostfile.path", "start.checkpoint"
MIXTURE = "data.mixture"
PATHS = (SOURCE, TOKENIZER, HOSTFILE, CHECKPOINT)
"""The keys whose values are paths or may be."""


def with_absolute_paths(composed: "Composition", run: RunPaths, tell: Callable[[str], None]) -> Any:
    """The plain data of a schedule with absolute paths. Names and URLs stay as they are.

    A path that is gone from where it counts from, and that the run found elsewhere when it began, stays there. `tell`
    gets a line if a file of that name lies in the other directory that a reader may have in mind.
    """
    data = composed.data
    for key in (*PATHS, *_sources_of_mixture(data)):
        keys = tuple(key.split("."))
        value = stated = _value(data, keys)
        if key == HOSTFILE and _value(data, ("launch", "cluster")) != "hostfile":
            continue  # nothing reads it
        if key == HOSTFILE and value is None:
            value = HostfileBlock().path
        if isinstance(value, str) and (relative := _relative(key, value)) is not None:
            folder = None if stated is None else composed.folder_of(key)
            other = Path.cwd() if folder else composed.folder
            data = _with(data, keys, _absolute(key, relative, folder, other, run, tell))
    return data


def _relative(key: str, value: str) -> str | None:
    """A relative path, or a name that may be one, without `file://`; None for an absolute path, a name or a URL."""
    scheme, is_url, rest = value.partition("://")
    if is_url and (not _is_source(key) or scheme not in LOCAL_SCHEMES):
        return None
    path = rest if is_url else value
    if not path or path.startswith(("/", "~")) or (_is_source(key) and local_path(value) is None):
        return None
    return path


def _absolute(
    key: str, relative: str, folder: Path | None, other_folder: Path, run: RunPaths, tell: Callable[[str], None]
) -> str:
    """The absolute path that a relative one stands for; `relative` itself if it is a name.

    It counts from `folder`, or else from the current directory. A reader may have `other_folder` in mind.
    """
    used, other = _joined(folder or Path.cwd(), relative), _joined(other_folder, relative)
    found, elsewhere = _exists(key, used), used != other and _exists(key, other)
    if not found and (before := _begun_with(key, relative, run)):
        return before
    if found and elsewhere and not (os.path.exists(used) and os.path.samefile(used, other)):
        whose = "of the schedule's file" if folder else "in which growctl runs"
        tell(f"{key}: using {used}, from the folder {whose}; {other} exists too")
    elif elsewhere and not found:
        whose = "in a schedule counts from the folder of its file"
        if folder is None:
            whose = "on the command line, or in a file that growctl ships, counts from the current directory"
        tell(f"{key}: {used} does not exist, but {other} does: a path {whose}")
    is_name = key == CHECKPOINT or (key == TOKENIZER and not is_path(relative) and not elsewhere)
    return relative if is_name and not found else used


def _joined(folder: Path, relative: str) -> str:
    """`relative` in `folder`, without `.` and, unless a link makes a difference, without `..`."""
    joined = os.path.join(folder.absolute(), relative)
    plain = os.path.normpath(joined)
    return plain if os.path.realpath(plain) == os.path.realpath(joined) else str(Path(joined))


def _exists(key: str, path: str) -> bool:
    if key == TOKENIZER:
        file = local_tokenizer(path)
        return file is not None and file.is_file()
    return missing_source(path) is None


def _begun_with(key: str, relative: str, run: RunPaths) -> str | None:
    """The absolute path that the run stores for `relative`; None if it has not begun, or stores another."""
    if not run.has_begun() or not run.schedule.is_file():
        return None
    stored = None
    with suppress(UserError, OSError):  # the runner reports a schedule that cannot be read
        stored = _value(read_plain(run.schedule), tuple(key.split(".")))
    tail = os.path.normpath(relative)
    while tail.startswith("../"):
        tail = tail.removeprefix("../")
    return stored if isinstance(stored, str) and stored.startswith("/") and stored.endswith(f"/{tail}") else None


def _sources_of_mixture(data: Any) -> list[str]:
    """The keys of the sources that a schedule mixes."""
    mixture = _value(data, ("data", "mixture"))
    return [f"{MIXTURE}.{index}.source" for index in range(len(mixture) if isinstance(mixture, list) else 0)]


def _is_source(key: str) -> bool:
    return key == SOURCE or key.startswith(MIXTURE)


def _value(data: Any, keys: tuple[str, ...]) -> Any:
    """The value at `keys` in plain data; None without one."""
    for key in keys:
        if isinstance(data, list) and key.isdigit() and int(key) < len(data):
            data = data[int(key)]
        else:
            data = data.get(key) if isinstance(data, dict) else None
    return data


def _with(data: Any, keys: tuple[str, ...], value: str) -> Any:
    """`data` with `value` at `keys`."""
    if not keys:
        return value
    if isinstance(data, list):
        index = int(keys[0])
        return [*data[:index], _with(data[index], keys[1:], value), *data[index + 1 :]]
    return data | {keys[0]: _with(data.get(keys[0]) or {}, keys[1:], value)}
