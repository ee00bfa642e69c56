"""Where schedules lie, and the choices for their blocks: which file a name means."""

from collections.abc import Sequence
from os.path import exists, isdir, isfile, normpath
from pathlib import Path

from pydantic import BaseModel

from growctl.schedule.errors import ScheduleError, did_you_mean, shown
from growctl.schema.blocks import Schedule

SHIPPED = Path(__file__).resolve().parent.parent.parent / "schedules"
"""Where the schedules that come with growctl lie, in a checkout and in an installed wheel alike."""

GROUPS = tuple(
    name
    for name, field in Schedule.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
)
"""The blocks of a schedule. A folder of that name holds choices for the block, a file each: hydra's config groups."""

ENDINGS = (".yaml", ".yml")


def shipped_schedules() -> dict[str, Path]:
    """The schedules that come with growctl, by name, in order. Choices for a block are none."""
    files = ((path.relative_to(SHIPPED), path) for path in sorted(SHIPPED.rglob("*.yaml")))
    return {name.with_suffix("").as_posix(): path for name, path in files if name.parts[0] not in GROUPS}


def find_schedule(reference: str) -> Path:
    """The file that `reference` means: a path that exists, else a shipped name (`quickstart`). Else a ScheduleError."""
    if exists(reference) and not isdir(reference):
        return Path(reference).absolute()
    names = shipped_schedules()
    name = reference.removeprefix("schedules/").removesuffix(".yaml")
    if name in names:
        return names[name]
    hint = did_you_mean(name, list(names)) or did_you_mean(Path(name).name, list(names))
    raise ScheduleError(f"{shown(reference)}: no such file; growctl comes with {', '.join(names)}{hint}")


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """The YAML file of that name, with or without its ending, in the first of `folders` that has it."""
    for folder in folders:
        for ending in ("",) if name.endswith(ENDINGS) else ENDINGS:
            path = normpath(folder / f"{name}{ending}")
            if isfile(path):  # unlike Path's, false for a name that no file can have
                return Path(path)
    return None


def choices(group: str, folders: Sequence[Path]) -> list[str]:
    """What may be chosen for a block."""
    files = (path for folder in folders for path in (folder / group).glob("*") if path.suffix in ENDINGS)
    return sorted({path.stem for path in files if path.is_file()})


def file_label(path: Path) -> str:
    """A file as messages call it: from the shipped folder, or from here, or in full."""
    for base, prefix in ((SHIPPED, "schedules/"), (Path.cwd(), "")):
        if path.is_relative_to(base):
            return prefix + path.relative_to(base).as_posix()
    return str(path)
