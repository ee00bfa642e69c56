"""Finds and reads the files of schedules and block choices, and the files that schedules name."""

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from os.path import exists, isdir, isfile, normpath
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from growctl.runs_dir import RunPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError, shown
from growctl.text.suggestion import did_you_mean
from model.errors import UserError
from stages.corpus.location import LOCAL_SCHEMES, is_path, local_path, local_tokenizer, missing_source, nearest_beside
from stages.data.spec import SourceSpec
from stages.images.spec import DIGITS

SHIPPED = Path(__file__).resolve().parent.parent.parent / "schedules"
"""The folder of the schedules that come with growctl, both in a checkout and in an installed wheel."""

GROUPS = tuple(
    name
    for name, field in Schedule.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
)
"""The blocks of a schedule. A folder with a block's name holds one file per choice: hydra's config groups."""

ENDINGS = (".yaml", ".yml")


def shipped_schedules() -> dict[str, Path]:
    """The schedules that come with growctl, by name, in order. Choices for a block are left out."""
    files = ((path.relative_to(SHIPPED), path) for path in sorted(SHIPPED.rglob("*.yaml")))
    return {name.with_suffix("").as_posix(): path for name, path in files if name.parts[0] not in GROUPS}


def find_schedule(reference: str, runs_dir: Path | None = None) -> Path:
    """The file for `reference`: a path that exists, else a shipped name (`quickstart`).

    Raises ScheduleError, which names the schedule of a run if `reference` is a run's folder, or its name in `runs_dir`.
    """
    if exists(reference) and not isdir(reference):
        return Path(reference).absolute()
    names = shipped_schedules()
    name = reference.removeprefix("schedules/").removesuffix(".yaml")
    if name in names:
        return names[name]
    folders = [Path(reference), *([runs_dir / reference] if runs_dir else [])] if reference else []
    if run := next((RunPaths(folder) for folder in folders if isfile(RunPaths(folder).schedule)), None):
        command = shlex.join(["growctl", "run", str(run.schedule), "--runs-dir", str(run.directory.parent)])
        raise ScheduleError(f"{shown(reference)}: is a run, not a schedule; to resume it: {command}")
    beside = nearest_beside(reference, ENDINGS)
    hint = f"; did you mean {beside!r}?" if beside else did_you_mean(Path(name).name, list(names))
    raise ScheduleError(f"{shown(reference)}: no such file; growctl comes with {', '.join(names)}{hint}")


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """The YAML file called `name`, with or without its ending, in the first of `folders` that has one; else None."""
    for folder in folders:
        for ending in ("",) if name.endswith(ENDINGS) else ENDINGS:
            path = normpath(folder / f"{name}{ending}")
            if isfile(path):  # Path.is_file would raise for a name that no file can have
                return Path(path)
    return None


def choices(group: str, folders: Sequence[Path]) -> list[str]:
    """The names of the files that can be chosen for the block `group`, sorted."""
    files = (path for folder in folders for path in (folder / group).glob("*") if path.suffix in ENDINGS)
    return sorted({path.stem for path in files if path.is_file()})


def read_block(file: Path) -> dict[str, Any]:
    """The keys in a YAML file. Raises ScheduleError if it has none."""
    from stages.plain_yaml import read_yaml  # slow: omegaconf

    try:
        content = read_yaml(file)
    except (UserError, OSError) as error:
        raise ScheduleError(f"{_label(file)}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(content, dict) or "hydra" in content:
        raise ScheduleError(f"{_label(file)}: must be a block of a schedule's keys")
    return content


def _label(path: Path) -> str:
    """A file's name in messages: relative to the shipped folder or the working directory, else the whole path."""
    for base, prefix in ((SHIPPED, "schedules/"), (Path.cwd(), "")):
        if path.is_relative_to(base):
            return prefix + path.relative_to(base).as_posix()
    return str(path)


def absolute_paths(data: Any, folder: Path, is_stated: Callable[[str], bool] = lambda key: True) -> Any:
    """`data`, plain data of a schedule, in which relative paths count from `folder`; changed in place.

    Names and URLs stay as they are. What may be a name, of a tokenizer or a checkpoint, is a path if there is such a
    file, and if `is_stated` says so of its key.
    """
    for key, block, name in list(_texts_that_name_files(data)):
        scheme, is_url, rest = block[name].partition("://")
        path = rest if is_url else scheme
        is_source = name in ("source", "validation")
        if (is_url and not (is_source and scheme in LOCAL_SCHEMES)) or not path or path.startswith(("/", "~", "${")):
            continue
        if is_source and (local_path(block[name]) is None or path == DIGITS):
            continue
        joined = os.path.join(folder.absolute(), path)
        plain = normpath(joined)
        absolute = plain if os.path.realpath(plain) == os.path.realpath(joined) else joined  # .. may lead out of a link
        may_be_name = name == "checkpoint" or (name == "tokenizer" and not is_path(path))
        if not may_be_name or (is_stated(key) and _exists(name, absolute)):
            block[name] = absolute
    return data


def _texts_that_name_files(data: Any) -> Iterator[tuple[str, dict[str, Any], str]]:
    """(dotted path, block, key) of every text in plain data that is a path or may be."""
    images = ("data.images.source", "data.images.validation")
    for key in ("data.source", *images, "data.tokenizer", "launch.hostfile.path", "start.checkpoint"):
        *parents, name = key.split(".")
        block = data
        for parent in parents:
            block = block.get(parent) if isinstance(block, dict) else None
        if not isinstance(block, dict) or not isinstance(block.get(name), str):
            continue
        if name != "path" or data["launch"].get("cluster", "hostfile") == "hostfile":  # else nothing reads it
            yield key, block, name
    for index, entry in enumerate(mixture_of(data)):
        if isinstance(entry, dict) and isinstance(entry.get("source"), str):
            yield f"data.mixture.{index}.source", entry, "source"


def _exists(name: str, path: str) -> bool:
    if name == "tokenizer":
        file = local_tokenizer(path)
        return file is not None and isfile(file)
    return missing_source(path) is None


def mixture_of(data: Any) -> list[Any]:
    """The entries of `data.mixture` in the plain data of a schedule; empty without any."""
    block = data.get("data") if isinstance(data, dict) else None
    mixture = block.get("mixture") if isinstance(block, dict) else None
    return mixture if isinstance(mixture, list) else []


def fill_in_corpora(data: Any, folder: Path) -> None:
    """Replaces each `corpus` in `data.mixture` by the source and the keys of that choice for `data`, as far as the
    entry does not set them itself.

    Choices are looked up in the schedule's own `folder`, then among the shipped ones. Raises ScheduleError for one that
    does not exist or has no source.
    """
    for index, entry in enumerate(mixture_of(data)):
        name = entry.get("corpus") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            continue
        here, file = f"data.mixture.{index}.corpus = {shown(name)}", find_file(f"data/{name}", (folder, SHIPPED))
        if file is None:
            names = choices("data", (folder, SHIPPED))
            raise ScheduleError(f"{here}: no such corpus; there are {', '.join(names)}{did_you_mean(name, names)}")
        choice = read_block(file)
        source = choice.get("source")
        if not isinstance(source, str) or "defaults" in choice or any("${" in str(value) for value in choice.values()):
            raise ScheduleError(f"{here}: {file} must set a plain source; set name and source here instead")
        if not file.is_relative_to(SHIPPED):
            absolute_paths({"data": choice}, file.parent)
        taken = {key: value for key, value in choice.items() if key in SourceSpec.model_fields}
        if all(choice.get(key) == data["data"].get(key) for key in ("tokenizer", "vocab_size")):
            taken |= {key: choice[key] for key in choice.keys() & {"approximate_tokens"}}
        own = {key: value for key, value in entry.items() if key != "corpus"}
        data["data"]["mixture"][index] = {"name": name} | ({} if "source" in entry else taken) | own
