"""What a run's directory says of the run: its schedule, its finished stages, its set of runs, and its controls.

A ladder records its set, the seeds of one schedule or the points of a sweep, in a file of its own, which outlives the
ledger, so that every command that resumes the ladder or trains its controls knows it. The controls of a ladder whose
folder was renamed keep their folders, with the ladder's former name.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from growctl.ladder.controls import ControlPlan
from growctl.ladder.load import load_resolved
from growctl.ledger.entries import RunEntry
from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.runs_dir import CONTROL_INFIX, RunPaths, RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError
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
        values = ", ".join(f"{key}={value}" for key, value in self.overrides.items())
        return f"{self.group} ({values})" if values else self.group


def read_run_set(run: RunPaths) -> RunSet | None:
    """The set that a ladder has recorded; None for a run of its own. Raises UserError if the file is damaged."""
    if not run.run_set.is_file():
        return None
    try:
        return TypeAdapter(RunSet).validate_json(run.run_set.read_bytes())
    except ValueError as error:
        raise UserError(
            f"{run.run_set}, which names the set of runs that this run belongs to, cannot be read: {error}; restore "
            "it, or remove it: then this is a run of its own"
        ) from None


def write_run_set(run: RunPaths, run_set: RunSet) -> None:
    """Records the set that a ladder belongs to in its directory, which exists."""
    write_file(run.run_set, (json.dumps(asdict(run_set), indent=1) + "\n").encode())


def short_name(run: str, is_below: bool) -> str:
    """A run's name in a table; for a control below its ladder, indented, the part of it after the ladder's."""
    _, infix, control = run.partition(CONTROL_INFIX)
    return f"  {control}" if is_below and infix else run


def in_their_folders(planned: Sequence[ControlPlan], ladder: RunPaths) -> list[ControlPlan]:
    """The `planned` controls of a ladder, each named as the folder that it has since the ladder was renamed."""
    renamed = renamed_controls(ladder)
    names = [plan.name.removeprefix(f"{ladder.directory.name}{CONTROL_INFIX}") for plan in planned]
    return [
        replace(plan, name=renamed[name], schedule=plan.schedule.model_copy(update={"name": renamed[name]}))
        if name in renamed
        else plan
        for plan, name in zip(planned, names, strict=True)
    ]


def renamed_controls(ladder: RunPaths) -> dict[str, str]:
    """The folders of the controls of a renamed ladder, by the part of their first names after CONTROL_INFIX.

    Of several that do the same, that which the ladder itself trained. Empty for a ladder that still has its first name,
    and for a copy beside its original, which the controls belong to.
    """
    entry, runs = _entry(ladder), RunsPaths(ladder.directory.parent)
    if entry is None or entry.control or entry.name == ladder.directory.name:
        return {}
    original = _entry(runs.run(entry.name))
    if original and original.run_id == entry.run_id:
        return {}
    found: dict[str, list[tuple[bool, str]]] = {}
    for run in runs.runs_with_ledgers():
        control = _entry(run)
        if control and control.control and control.ladder_id == entry.run_id:
            place = (control.control_of != ladder.directory.name, run.directory.name)
            found.setdefault(control.name.removeprefix(f"{control.control_of}{CONTROL_INFIX}"), []).append(place)
    return {part: min(places)[1] for part, places in found.items()}


def _entry(run: RunPaths) -> RunEntry | None:
    with suppress(LedgerError, OSError):
        state = run.ledger.stat()
        return _read_entry(run.ledger, (state.st_ino, state.st_mtime_ns, state.st_size))
    return None


@lru_cache(maxsize=4096)
def _read_entry(ledger: Path, _: tuple[int, int, int]) -> RunEntry:
    """The run of a ledger, which never changes. Each renamed ladder looks at all runs, so each is read once."""
    with Ledger.open(ledger, read_only=True) as opened:
        return opened.run()
