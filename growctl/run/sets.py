"""A set of runs, such as the seeds of one schedule or the points of a sweep: its requests, its training, its report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growctl.ladder.load import load_schedule
from growctl.ladder.stage_plans import StagePlan, plan_run, total_flops
from growctl.launch.resolve import machines_of
from growctl.run.changed_schedule import first_difference
from growctl.run.grid import Point, run_names
from growctl.run.requests import LadderRequest, RunRequest, left_to_train
from growctl.run.screen import Screen
from growctl.run.signals import Stopped
from growctl.runs.directory import RunError, RunSet, own_schedule, read_run_set
from growctl.runs.status import RunState, RunStatus, find_status
from growctl.runs.status_sections import run_columns
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.text.formatting import scientific, short_count
from growctl.text.section import Cell, Column, Paragraph, Section, Table, figure, rows_of
from model.errors import Failure, UserError

Submit = Callable[[Sequence[LadderRequest], Screen], dict[str, str]]
"""Submits runs to SLURM; returns why runs could not be submitted, by name."""


@dataclass(frozen=True)
class SweptRun:
    """A run of the set, or a control of one."""

    name: str
    control: str | None
    """Kind of control; null for a ladder."""
    control_of: str | None
    overrides: dict[str, Any]
    """What sets it apart in the set: the swept keys of the schedule, dotted, with its values."""
    state: RunState
    reason: str | None
    """Why it failed, or could not be submitted."""
    final_loss: float | None
    """The validation loss at the end of its last stage; null while it is unfinished."""
    num_parameters: tuple[int, ...]
    """The sizes of the stages that were asked for."""
    tokens: int
    """Their training tokens."""
    flops: float
    """Their FLOPs."""
    flops_left: float
    """The FLOPs of those that are not finished."""
    jobs: dict[str, str]
    """The SLURM jobs last submitted for it: {name: id}."""


@dataclass(frozen=True)
class SweepDocument:
    """The runs of a set, in the order of the grid, each followed by its controls. Unknown values are null."""

    runs_dir: Path
    group: str
    """The name of the set."""
    runs: tuple[SweptRun, ...]


def set_requests(
    schedule: str,
    points: Sequence[Point],
    runs_dir: Path,
    *,
    name: str | None = None,
    with_controls: bool | None = None,
    sources: Sequence[Path] = (),
    until: str | None = None,
) -> list[LadderRequest]:
    """A request for the run at each of `points` of `schedule`, in a set called `name`, or else as the schedule is.

    The other arguments are those of `load_schedule` and `LadderRequest.of`. Raises ScheduleError for the first point
    whose schedule is invalid, RunError if a run cannot be started or resumed.
    """
    if name is None:
        name = load_schedule(schedule, points[0].overrides, runs_dir=runs_dir).name
        assert name is not None
    requests = []
    for run_name, point in zip(run_names(name, [point.values for point in points]), points, strict=True):
        loaded = load_schedule(schedule, point.overrides, runs_dir=runs_dir, run=run_name)
        belongs = RunSet(name, point.values)
        _check_free(runs_dir / run_name, belongs)
        requests.append(
            LadderRequest.of(
                *(loaded, schedule, runs_dir, run_name, with_controls, sources, until, point.overrides), run_set=belongs
            )
        )
    for request in requests:
        _check_unchanged(request)
        request.checked(machines_of(request.ladder.schedule))
    return requests


def _unfinished(part: RunRequest, request: LadderRequest) -> list[StagePlan]:
    """The stages and releases of a ladder or control that are asked for and not finished."""
    return [plan for plan in left_to_train(part.schedule, request.directory(part)) if request.trains(plan.index)]


def _check_free(directory: Path, belongs: RunSet) -> None:
    """Raises RunError if another run, one that does not belong to the set, has the name of one of its runs."""
    run = RunPaths(directory)
    if not run.has_begun() and not run.jobs.exists():
        return
    present = read_run_set(run)
    if present is None or present.group != belongs.group:
        whose = f"of the set {present.group}" if present else "of its own"
        raise RunError(
            f"{directory} is a run {whose}, but one of the runs of {belongs} would have its name; choose another name "
            "for them with --name"
        )


def _check_unchanged(request: LadderRequest) -> None:
    """Raises RunError if a run of the set has begun with a schedule that has another result."""
    directory = request.directory(request.ladder)
    run = RunPaths(directory)
    if not run.has_begun() or not run.schedule.exists():
        return
    if difference := first_difference(own_schedule(run.schedule), request.ladder.schedule):
        raise RunError(f"{directory} keeps its schedule: {difference}; choose another name for these runs with --name")


def train_set(requests: Sequence[LadderRequest], screen: Screen, submit: Submit) -> dict[str, str]:
    """Starts or resumes each run of a set that is not finished, or submits it to SLURM; returns why runs failed.

    The reasons are by name. Raises Stopped on a signal, after the current run has saved; the same call resumes.
    """
    failures: dict[str, str] = {}
    queued: list[LadderRequest] = []
    for number, request in enumerate(requests, 1):
        name, where = request.ladder.name, f"run {number} of {len(requests)}"
        if not any(plan for part in request.parts() for plan in _unfinished(part, request)):
            screen.message(f"{name}: finished already, skipped ({where})")
        elif request.ladder.schedule.launch.cluster == "slurm":
            queued.append(request)
        else:
            _train(request, where, screen, failures)
    return failures | submit(queued, screen) if queued else failures


def _train(request: LadderRequest, where: str, screen: Screen, failures: dict[str, str]) -> None:
    from growctl.run.ladder import run

    name = request.ladder.name
    screen.message(f"{name}: {where}")
    try:
        run(request, screen)
    except Stopped:
        screen.message(f"stopped in {name}, {where}")
        raise
    except (UserError, Failure) as error:
        failures[name] = str(error)
        screen.message(f"{name}: failed: {error}")


def describe_set(requests: Sequence[LadderRequest], failures: Mapping[str, str]) -> SweepDocument:
    """The runs of a set as they are now, whether or not they have begun; `failures`: why runs failed, by name."""
    runs_dir, run_set = requests[0].runs_dir, requests[0].ladder.run_set
    assert run_set is not None, f"{requests[0].ladder.name} belongs to no set"
    there = {run.directory.name for run in RunsPaths(runs_dir).all_runs()}
    names = [request.ladder.name for request in requests if request.ladder.name in there]
    begun = {run.name: run for run in find_status(runs_dir, names)} if names else {}
    runs = [
        _swept(part, request, begun.get(part.name), failures.get(part.name))
        for request in requests
        for part in request.parts()
    ]
    return SweepDocument(runs_dir, run_set.group, tuple(runs))


def _swept(part: RunRequest, request: LadderRequest, run: RunStatus | None, failure: str | None) -> SweptRun:
    state: RunState = run.state if run else "not started"
    plans = [plan for plan in plan_run(part.schedule, request.steps_done(part)) if request.trains(plan.index)]
    has_failed = failure is not None and state != "finished"
    stages = [stage for stage in run.stages if not stage.branch_of] if run else []
    return SweptRun(
        name=part.name,
        control=part.control,
        control_of=part.control_of,
        overrides=part.run_set.overrides if part.run_set else {},
        state="failed" if has_failed else state,
        reason=failure if has_failed else run.reason if run else None,
        final_loss=stages[-1].validation_loss if stages and state == "finished" else None,
        num_parameters=tuple(plan.num_parameters for plan in plans if not plan.branch_of),
        tokens=sum(plan.budget_tokens for plan in plans),
        flops=total_flops(plans).total,
        flops_left=total_flops(_unfinished(part, request)).total,
        jobs=run.jobs if run else {},
    )


def cost_section(document: SweepDocument, *, reuses: bool) -> Section:
    """What the runs of a set will cost; `reuses`: whether equal training is done once."""
    columns = (
        *run_columns(document.runs, {run.name for run in document.runs}),
        Column("parameters", cell=lambda run: Cell(_sizes(run))),
        Column("tokens", cell=lambda run: figure(run.tokens, short_count)),
        Column("FLOPs", cell=lambda run: figure(run.flops, scientific)),
    )
    total, left = sum(run.flops for run in document.runs), sum(run.flops_left for run in document.runs)
    tokens = short_count(sum(run.tokens for run in document.runs))
    sums = [Cell("total"), Cell(""), Cell(""), Cell(tokens), figure(total, scientific)]
    notes = [f"stages still to train: {scientific(left)} FLOPs"] if left < total else []
    if reuses:
        notes.append("Training that several runs have in common is done once, so they may cost less.")
    table = Table.of("runs", columns, [*rows_of(columns, document.runs), sums])
    return Section("sweep", "", (table, *map(Paragraph, notes)))


def outcome_section(document: SweepDocument) -> Section:
    """How the runs of a set ended."""
    columns = (
        *run_columns(document.runs, {run.name for run in document.runs}),
        Column("final loss", cell=lambda run: Cell("" if run.final_loss is None else f"{run.final_loss:.4f}")),
    )
    return Section("sweep", "", (Table.of("runs", columns, rows_of(columns, document.runs)),))


def _sizes(run: SweptRun) -> str:
    sizes = [short_count(size) for size in run.num_parameters]
    return " -> ".join(sizes if len(sizes) < 3 else [sizes[0], sizes[-1]])
