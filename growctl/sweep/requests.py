"""The runs of a set as requests, and the checks on all of them before the first one starts."""

from collections.abc import Sequence
from pathlib import Path

from growctl.ladder.load import load_schedule
from growctl.launch.resolve import machines_of
from growctl.run.changed_schedule import first_difference
from growctl.run.requests import LadderRequest, RunError, RunRequest, left_to_train, own_schedule
from growctl.run.run_set import RunSet, read_run_set
from growctl.runs_dir import RunPaths
from growctl.sweep.grid import Point
from growctl.sweep.names import run_names


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


def parts(request: LadderRequest) -> list[RunRequest]:
    """The ladder and the controls that `request` trains."""
    return [request.ladder, *request.controls()]


def is_done(request: LadderRequest) -> bool:
    """Whether a ladder and its controls have nothing left to train."""
    left = (plan for part in parts(request) for plan in left_to_train(part.schedule, request.directory(part)))
    return not any(request.trains(plan.index) for plan in left)


def _check_free(directory: Path, belongs: RunSet) -> None:
    """Raises RunError if another run, one that does not belong to the set, has the name of one of its runs."""
    run = RunPaths(directory)
    if not run.has_begun() and not run.jobs.exists():
        return
    known = read_run_set(run)
    if known is None or known.group != belongs.group:
        whose = f"of the set {known.group}" if known else "of its own"
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
