"""Loads a growth schedule from a YAML file and overrides.

Its schema is in growctl/schema/blocks.py.

hydra composes the files, OmegaConf resolves references, and pydantic validates. One message lists all unknown keys,
wrong types and bad combinations before any work starts.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from growctl.runs_dir import RunsPaths
from growctl.schedule.checks import RUN_NAME, check_combinations, check_controls
from growctl.schedule.errors import NAME_ALLOWED, ScheduleError, describe, named_python, path_of, several
from growctl.schedule.files import SHIPPED, find_schedule, shipped_schedules
from growctl.schedule.start import with_base
from growctl.schema.blocks import Schedule
from model.errors import UserError
from stages.data.corpus import missing_text

__all__ = [
    "RUN_NAME",
    "SHIPPED",
    "ScheduleError",
    "check_text",
    "find_schedule",
    "load_resolved",
    "load_schedule",
    "parse_schedule",
    "shipped_schedules",
]


def load_schedule(
    reference: str,
    overrides: Sequence[str] = (),
    *,
    runs_dir: Path = Path("runs"),
    run: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Schedule:
    """Loads the schedule at a path or with a shipped name, and applies hydra overrides (`stages.0.train_tokens=200k`).

    Fills in the schedule's name, and what growctl must know of its start checkpoint. The run called `run`, by default
    as the schedule is, keeps the checkpoint that it has begun from. Relative paths become absolute
    (growctl/schedule/paths.py); `tell` gets a line where one may mean another file than the reader expects. Raises
    ScheduleError with everything that is wrong with the schedule or its controls.
    """
    from growctl.schedule.compose import Composition
    from growctl.schedule.paths import with_absolute_paths

    path = find_schedule(reference)
    composed = Composition(path, overrides, reference)
    name = run or (composed.data.get("name") if isinstance(composed.data, dict) else None) or path.stem
    own = RunsPaths(runs_dir).run(str(name))
    try:
        data = with_base(with_absolute_paths(composed, own, tell), runs_dir, own, load_resolved)
    except UserError as error:
        raise _error(reference, [str(error)], composed.origin) from error
    schedule = parse_schedule(data, label=reference, default_name=path.stem, origin=composed.origin)
    if lines := check_controls(schedule):
        raise _error(reference, lines, composed.origin)
    return schedule


def check_text(schedule: Schedule, label: str) -> None:
    """Raises ScheduleError if the text or the tokenizer is a local path where nothing is. Messages call it `label`."""
    if missing := missing_text(schedule.data):
        raise ScheduleError(f"{label}: {missing}")


def load_resolved(path: Path) -> Schedule:
    """Loads the schedule that a run stores in the file `path`, with every default written out.

    Raises ScheduleError if it is invalid, OSError if it cannot be read.
    """
    from growctl.schedule.reading import read_plain

    return parse_schedule(read_plain(path), label=str(path), default_name=path.parent.name)


def parse_schedule(
    data: Any, *, label: str, default_name: str, origin: Callable[[str], str] = lambda path: ""
) -> Schedule:
    """Validates plain data and returns the schedule. Messages call it `label`. Raises ScheduleError if it is invalid.

    `origin` maps a dotted path to the start of a message about its value: the place where that value was set.
    """
    if not isinstance(data, dict) or not data.keys() & Schedule.model_fields.keys():
        raise ScheduleError(f"{label}: is not a schedule; a schedule has the keys {', '.join(Schedule.model_fields)}")
    try:
        lines = list(named_python(data))
        if not lines:
            schedule = Schedule.model_validate(data)
            lines = check_combinations(schedule)
    except ValidationError as error:
        lines = describe(error, Schedule)
    if lines:
        raise _error(label, lines, origin)
    if schedule.name is None:
        if not RUN_NAME.fullmatch(default_name):
            raise ScheduleError(
                f"{label}: name: is missing, and the file's name {default_name!r} is not allowed: {NAME_ALLOWED}"
            )
        schedule = schedule.model_copy(update={"name": default_name})
    return schedule


def _error(label: str, lines: Sequence[str], origin: Callable[[str], str]) -> ScheduleError:
    return ScheduleError(f"{label}: {several([origin(path_of(line)) + line for line in lines])}")
