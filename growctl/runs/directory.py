"""What a run's directory says of the run: its schedule, its finished stages, its set of runs, and its controls.

A ladder records its set, the seeds of one schedule or the points of a sweep, in a file of its own, which outlives the
ledger, so that every command that resumes the ladder or trains its controls knows it. The controls of a ladder whose
folder was renamed keep their folders, with the ladder's former name.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from growctl.ladder.controls import ControlPlan, plan_controls
from growctl.ladder.load import load_resolved
from growctl.ledger.entries import RunEntry
from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.runs_dir import CONTROL_INFIX, RunPaths, RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import ScheduleError
from model.errors import UserError
from model.strict import first_reason
from stages.checkpoint.manifest import CheckpointError, read_manifest
from stages.stage_dir import StagePaths


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


def missing_note(stage: StagePaths) -> str | None:
    """Names a file that a finished stage must have and lacks; None if it has them all."""
    missing = [path for path in (stage.final, stage.metrics) if not path.exists()]
    return f"{missing[0]} is missing. If this is a copy, copy the run again" if missing else None


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


def read_jobs(run: RunPaths) -> dict[str, str]:
    """The SLURM jobs last submitted for a ladder and its controls: {name: id}. Raises RunError if that is damaged."""
    try:
        return TypeAdapter(dict[str, str]).validate_json(run.jobs.read_bytes()) if run.jobs.exists() else {}
    except ValidationError as error:
        raise RunError(
            f"{run.jobs}, which lists the jobs of this run, cannot be read: {first_reason(error)}; check with squeue "
            "that none of them is queued or running, then move the file away"
        ) from None


def ladder_of(control_of: str, ladder_id: str | None, run_ids: Mapping[str, str], prefix: str = "") -> str:
    """The folder of a control's ladder, from what the control's ledger says; `run_ids`: those of ladders, by folder.

    It is the folder that the control names, if the ladder there has the recorded id, or else that of the ladder with
    this id: a renamed ladder keeps its controls, and a copy beside its original has none. `prefix`: that with which the
    control's ledger was imported; its ladder may have the same.
    """
    named = [folder for folder in (prefix + control_of, control_of) if folder in run_ids]
    alike = sorted(folder for folder, run_id in run_ids.items() if run_id == ladder_id)
    fits = (folder for folder in (*named, *alike) if ladder_id in (None, run_ids[folder]))
    return next(fits, control_of)


def controls_of(schedule: Schedule, steps_done: Sequence[int], ladder: RunPaths) -> list[ControlPlan]:
    """The controls of a ladder, in their folders, at the peaks that tuning has found so far.

    `steps_done` as in `plan_stages`.
    """
    planned = _in_their_folders(plan_controls(schedule, steps_done), ladder)
    tuning = {name for plan in planned for name in plan.awaits}
    rates = {plan.name: plan.schedule.learning_rate for plan in planned}
    losses = {name: loss_at_end(RunPaths(ladder.directory.with_name(name))) for name in tuning}
    return [plan.at_best_peak(rates, losses) for plan in planned]


def loss_at_end(run: RunPaths) -> float | None:
    """The final loss of a run, in nats per token: infinite if it diverged, None if it has not ended."""
    with suppress(LedgerError, OSError), Ledger(run.ledger, read_only=True) as ledger:
        for last in (stage.name for stage in ledger.stages()[-1:]):
            if ledger.finished(last):
                loss = {each.point: each.loss for each in ledger.evaluations(last)}.get("final")
                return math.inf if loss is None else loss
            if any(anomaly.action == "stop" for anomaly in ledger.anomalies(last)):
                return math.inf
    return None


def _in_their_folders(planned: Sequence[ControlPlan], ladder: RunPaths) -> list[ControlPlan]:
    """The `planned` controls of a ladder, each named as the folder that it has since the ladder was renamed."""
    name, entries = ladder.directory.name, dict[str, RunEntry]()
    for run in (ladder, *RunsPaths(ladder.directory.parent).runs_with_ledgers()):
        with suppress(LedgerError, OSError), Ledger(run.ledger, read_only=True) as ledger:
            entries[run.directory.name] = ledger.run()
        if name not in entries or entries[name].name == name:
            return list(planned)
    run_ids = {folder: entry.run_id for folder, entry in entries.items() if not entry.control}
    folders: dict[str, str] = {}
    # If several do the same, because the original of a copied ladder is gone, the one that this ladder trained counts.
    for folder, entry in sorted(entries.items(), key=lambda item: item[1].control_of == name):
        if entry.control_of and ladder_of(entry.control_of, entry.ladder_id, run_ids) == name:
            folders[entry.name.removeprefix(f"{entry.control_of}{CONTROL_INFIX}")] = folder
    names = {plan.name: folders.get(plan.name.removeprefix(f"{name}{CONTROL_INFIX}"), plan.name) for plan in planned}
    return [
        replace(
            plan,
            name=names[plan.name],
            schedule=plan.schedule.model_copy(update={"name": names[plan.name]}),
            awaits=tuple(names[each] for each in plan.awaits),
        )
        for plan in planned
    ]
