"""How a YAML file and overrides become a growth schedule (its schema: growctl/schema/blocks.py).

hydra composes, OmegaConf resolves, pydantic judges. Unknown keys, wrong types and impossible combinations end here, in
one message, before any work.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from growctl.schedule.checks import RUN_NAME, impossible, unusable_controls
from growctl.schedule.errors import NAME_ALLOWED, ScheduleError, describe, named_python, path_of, several
from growctl.schedule.files import SHIPPED, find_schedule, shipped_schedules
from growctl.schema.blocks import Schedule

__all__ = [
    "RUN_NAME",
    "SHIPPED",
    "ScheduleError",
    "find_schedule",
    "load_resolved",
    "load_schedule",
    "parse_schedule",
    "shipped_schedules",
]


def load_schedule(reference: str, overrides: Sequence[str] = ()) -> Schedule:
    """The schedule at a path or of a shipped name, with hydra overrides (`stages.0.train_tokens=200k`) applied.

    Its name is filled in. Raises ScheduleError with everything that is wrong with it, or with one of its controls.
    """
    from growctl.schedule.compose import Composition

    path = find_schedule(reference)
    composed = Composition(path, overrides, reference)
    schedule = parse_schedule(composed.data, label=reference, default_name=path.stem, origin=composed.origin)
    if lines := unusable_controls(schedule):
        raise _error(reference, lines, composed.origin)
    return schedule


def load_resolved(path: Path) -> Schedule:
    """The schedule that a run keeps in the file `path`, every default written out.

    Raises ScheduleError where it cannot be used, OSError where it cannot be read.
    """
    from growctl.schedule.reading import read_plain

    return parse_schedule(read_plain(path), label=str(path), default_name=path.parent.name)


def parse_schedule(
    data: Any, *, label: str, default_name: str, origin: Callable[[str], str] = lambda path: ""
) -> Schedule:
    """A schedule from plain data (`label` is what messages call it); ScheduleError where it cannot be used.

    `origin` gives what a message about the value at a dotted path begins with: where that value comes from.
    """
    if not isinstance(data, dict) or not data.keys() & Schedule.model_fields.keys():
        raise ScheduleError(f"{label}: is no schedule; one has the keys {', '.join(Schedule.model_fields)}")
    try:
        lines = list(named_python(data))
        if not lines:
            schedule = Schedule.model_validate(data)
            lines = impossible(schedule)
    except ValidationError as error:
        lines = describe(error, Schedule)
    if lines:
        raise _error(label, lines, origin)
    if schedule.name is None:
        if not RUN_NAME.fullmatch(default_name):
            raise ScheduleError(
                f"{label}: name: is missing, and the file's {default_name!r} cannot be one: {NAME_ALLOWED}"
            )
        schedule = schedule.model_copy(update={"name": default_name})
    return schedule


def _error(label: str, lines: Sequence[str], origin: Callable[[str], str]) -> ScheduleError:
    return ScheduleError(f"{label}: {several([origin(path_of(line)) + line for line in lines])}")
