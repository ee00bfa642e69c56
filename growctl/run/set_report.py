"""The runs of a set: what they cost, and what became of them, as JSON and as tables of 80 columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from growctl.ladder.releases import plan_run
from growctl.ladder.stage_plans import total_flops
from growctl.run.requests import LadderRequest, RunRequest, left_to_train
from growctl.runs.status import RunState, RunStatus, find_status, run_directories
from growctl.runs_dir import CONTROL_INFIX
from growctl.text.colours import BAD, FAINT, GOOD, WARNING
from growctl.text.formatting import scientific, short_count
from growctl.text.name_cell import NameCell

_STYLES = {"finished": GOOD, "failed": BAD, "damaged": BAD, "unreadable": BAD, "stopped": WARNING, "not started": FAINT}


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
    """The SLURM jobs last submitted for it: {name: id}; 12_3 is task 3 of the job array 12."""


@dataclass(frozen=True)
class SweepDocument:
    """The runs of a set, in the order of the grid, each followed by its controls. Unknown values are null."""

    runs_dir: Path
    group: str
    """The name of the set."""
    runs: tuple[SweptRun, ...]


def sweep_document(requests: Sequence[LadderRequest], failures: Mapping[str, str]) -> SweepDocument:
    """The runs of a set as they are now; `failures`: why runs failed, by name."""
    runs_dir, run_set = requests[0].runs_dir, requests[0].ladder.run_set
    assert run_set is not None, f"{requests[0].ladder.name} belongs to no set"
    there = {directory.name for directory in run_directories(runs_dir)}
    names = [request.ladder.name for request in requests if request.ladder.name in there]
    statuses = {run.name: run for run in find_status(runs_dir, names)} if names else {}
    runs = (
        _swept(request, part, statuses.get(part.name), failures.get(part.name))
        for request in requests
        for part in request.parts()
    )
    return SweepDocument(runs_dir, run_set.group, tuple(runs))


def _swept(request: LadderRequest, part: RunRequest, status: RunStatus | None, failure: str | None) -> SweptRun:
    plans = [plan for plan in plan_run(part.schedule, request.steps_done(part)) if request.trains(plan.index)]
    left = [p for p in left_to_train(part.schedule, request.directory(part)) if request.trains(p.index)]
    state, reason = (status.state, status.reason) if status else ("not started", None)
    if failure is not None and state != "finished":
        state, reason = "failed", failure
    stages = [stage for stage in status.stages if not stage.branch_of] if status else []
    run_set = request.ladder.run_set
    return SweptRun(
        name=part.name,
        control=part.control,
        control_of=part.control_of,
        overrides=run_set.overrides if run_set else {},
        state=state,
        reason=reason,
        final_loss=stages[-1].validation_loss if stages and state == "finished" else None,
        num_parameters=tuple(plan.num_parameters for plan in plans if not plan.branch_of),
        tokens=sum(plan.budget_tokens for plan in plans),
        flops=total_flops(plans).total,
        flops_left=total_flops(left).total,
        jobs=status.jobs if status else {},
    )


def print_costs(document: SweepDocument, console: Console, reuses: bool) -> None:
    """Prints a line for each run, with its controls below it, and the total. `reuses`: whether runs share training."""
    table = _table(document)
    for heading in ("parameters", "tokens", "FLOPs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in document.runs:
        state = "finished" if not run.flops_left else "new" if run.state == "not started" else "begun"
        sizes = list(map(short_count, run.num_parameters))
        ends = sizes if len(sizes) < 3 else [sizes[0], sizes[-1]]
        table.add_row(_name(run), state, " -> ".join(ends), short_count(run.tokens), scientific(run.flops))
    total, left = sum(run.flops for run in document.runs), sum(run.flops_left for run in document.runs)
    table.add_row("total", "", "", short_count(sum(run.tokens for run in document.runs)), scientific(total))
    console.print(table)
    if left < total:
        console.print(f"stages still to train: {scientific(left)} FLOPs", soft_wrap=True)
    if reuses:
        console.print("Training that several runs have in common is done once, so they may cost less.", soft_wrap=True)


def print_outcomes(document: SweepDocument, console: Console) -> None:
    """Prints a line for each run of a set, with its controls below it: its state and its final loss."""
    table = _table(document)
    table.add_column("final loss", justify="right", no_wrap=True)
    for run in document.runs:
        loss = "" if run.final_loss is None else f"{run.final_loss:.4f}"
        table.add_row(_name(run), Text(run.state, style=_STYLES.get(run.state, "")), loss)
    console.print(Text(), table)


def _name(run: SweptRun) -> NameCell:
    return NameCell(f"  {run.name.partition(CONTROL_INFIX)[2]}" if run.control else run.name)


def _table(document: SweepDocument) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("run, its controls" if any(run.control for run in document.runs) else "run", "state"):
        table.add_column(heading, overflow="fold")
    return table
