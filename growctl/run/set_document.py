"""What `growctl sweep --json` prints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from growctl.run.requests import LadderRequest
from growctl.run.set_costs import Cost
from growctl.run.set_outcomes import final_loss, outcomes
from growctl.run.sets import parts
from growctl.runs.status import RunState


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
    tokens: int
    """Training tokens of the stages that were asked for."""
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
    run_set = requests[0].ladder.run_set
    assert run_set is not None, f"{requests[0].ladder.name} belongs to no set"
    costs = [Cost.of(part, request) for request in requests for part in parts(request)]
    runs = [
        SweptRun(
            *(run.name, run.control, run.control_of, run.overrides, run.state, run.reason, final_loss(run)),
            tokens=cost.tokens,
            flops=cost.flops,
            flops_left=cost.left,
            jobs=run.jobs,
        )
        for run, cost in zip(outcomes(requests, failures), costs, strict=True)
    ]
    return SweepDocument(requests[0].runs_dir, run_set.group, tuple(runs))
