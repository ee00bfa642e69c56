"""What a run's directory says of the run: its schedule, its finished stages, and the set of runs that it belongs to.

A ladder records its set, the seeds of one schedule or the points of a sweep, in a file of its own, which outlives the
ledger, so that every command that resumes the ladder or trains its controls knows it.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from growctl.ladder.load import ScheduleError, load_resolved
from growctl.runs_dir import CONTROL_INFIX, RunPaths
from growctl.schedule.blocks import Schedule
from model.errors import UserError
from stages.checkpoint.files import write_file
from stages.checkpoint.manifest import CheckpointError, read_manifest


class RunError(UserError):
    """The run cannot be started or resumed as requested. The user can fix it; exit code 2."""


def own_schedule(path: Path) -> Schedule:
    """The schedule that a run keeps in the file `path`; raises RunError if it cannot be read."""
    try:
        return load_resolved(path)
    except (ScheduleError, OSError) as error:
        raise RunError(f"{path}, the run's own schedule, cannot be read: {error}") from error


def steps_done(schedule: Schedule, directory: Path) -> list[int]:
    """The number of steps of each finished stage, oldest first."""
    steps: list[int] = []
    for index, stage in enumerate(schedule.stages):
        final = RunPaths(directory).stage(index, stage.name).final
        if not final.exists():
            break
        try:
            steps.append(read_manifest(final).step)
        except CheckpointError:
            break  # the runner sets it aside, with a message, when it reaches this stage
    return steps


@dataclass(frozen=True)
class RunSet:
    """A set of runs, and the place of one run in it."""

    group: str
    """The name of the set."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """What sets the run apart: the swept keys of the schedule, dotted, with its values."""

    def __str__(self) -> str:
        values = ", ".join(f"{key}={_text(value)}" for key, value in self.overrides.items())
        return f"{self.group} ({values})" if values else self.group


def read_run_set(run: RunPaths) -> RunSet | None:
    """The set that a ladder has recorded; None for a run of its own. Raises UserError if the file is damaged."""
    try:
        return RunSet(**json.loads(run.run_set.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(
            f"{run.run_set}, which names the set of runs that this run belongs to, cannot be read: {error}; restore "
            "it, or remove it: then this is a run of its own"
        ) from None


def write_run_set(run: RunPaths, run_set: RunSet) -> None:
    """Records the set that a ladder belongs to in its directory, which exists."""
    write_file(run.run_set, (json.dumps(asdict(run_set), indent=1) + "\n").encode())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def short_name(run: str, is_below: bool) -> str:
    """A run's name in a table; for a control below its ladder, indented, the part of it after the ladder's."""
    _, infix, control = run.partition(CONTROL_INFIX)
    return f"  {control}" if is_below and infix else run
