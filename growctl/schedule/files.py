"""Finds the files that the names of schedules and block choices stand for."""

import shlex
from collections.abc import Sequence
from os.path import exists, isdir, isfile, normpath
from pathlib import Path

from pydantic import BaseModel

from growctl.runs_dir import RunPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError, shown
from growctl.text.suggestion import did_you_mean

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
    if run := _run_called(reference, runs_dir):
        where = [] if run.directory.parent == Path("runs") else ["--runs-dir", str(run.directory.parent)]
        command = shlex.join(["growctl", "run", str(run.schedule), *where])
        raise ScheduleError(f"{shown(reference)}: is a run, not a schedule; to resume it: {command}")
    hint = did_you_mean(name, list(names)) or did_you_mean(Path(name).name, list(names))
    raise ScheduleError(f"{shown(reference)}: no such file; growctl comes with {', '.join(names)}{hint}")


def _run_called(reference: str, runs_dir: Path | None) -> RunPaths | None:
    """The run in the folder `reference`, or else of that name in `runs_dir`; None if there is none."""
    folders = [Path(reference)] if reference else []
    folders += [runs_dir / reference] if reference and runs_dir else []
    return next((RunPaths(folder) for folder in folders if isfile(RunPaths(folder).schedule)), None)


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


def file_label(path: Path) -> str:
    """A file's name in messages: relative to the shipped folder or the working directory, else the whole path."""
    for base, prefix in ((SHIPPED, "schedules/"), (Path.cwd(), "")):
        if path.is_relative_to(base):
            return prefix + path.relative_to(base).as_posix()
    return str(path)
