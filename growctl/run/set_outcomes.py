"""What became of the runs of a set, whether or not they have begun."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from growctl.run.requests import LadderRequest
from growctl.run.sets import parts
from growctl.runs.status import RunStatus, find_status, run_directories


def outcomes(requests: Sequence[LadderRequest], failures: Mapping[str, str]) -> list[RunStatus]:
    """The state of the runs of a set and of their controls. A run of `failures`, {name: reason}, has failed."""
    runs_dir = requests[0].runs_dir
    there = {directory.name for directory in run_directories(runs_dir)}
    names = [request.ladder.name for request in requests if request.ladder.name in there]
    known = {run.name: run for run in find_status(runs_dir, names)} if names else {}
    found = []
    for request in requests:
        for part in parts(request):
            run = known.get(part.name) or _not_started(request, part.name, part.control)
            if part.name in failures and run.state != "finished":
                run = replace(run, state="failed", reason=failures[part.name])
            found.append(run)
    return found


def final_loss(run: RunStatus) -> float | None:
    """The validation loss at the end of the last stage of a finished run; None while it is unfinished."""
    stages = [stage for stage in run.stages if not stage.branch_of]
    return stages[-1].validation_loss if stages and run.state == "finished" else None


def _not_started(request: LadderRequest, name: str, control: str | None) -> RunStatus:
    run_set = request.ladder.run_set
    return RunStatus(
        *(name, "not started", str(request.runs_dir / name)),
        schedule=request.ladder.label,
        control=control,
        control_of=request.ladder.name if control else None,
        group=run_set.group if run_set else None,
        overrides=run_set.overrides if run_set else {},
    )
