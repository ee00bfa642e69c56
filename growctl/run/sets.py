"""The runs of a set: their names, the checks on all of them before the first one starts, and their training."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from growctl.ladder.load import load_schedule
from growctl.launch.resolve import machines_of
from growctl.run.changed_schedule import first_difference
from growctl.run.grid import Point
from growctl.run.requests import LadderRequest, left_to_train
from growctl.run.screen import Screen
from growctl.run.signals import Stopped
from growctl.runs.directory import RunError, RunSet, own_schedule, read_run_set
from growctl.runs_dir import RunPaths
from model.errors import Failure, UserError

Submit = Callable[[Sequence[LadderRequest], Screen], dict[str, str]]
"""Submits runs to SLURM; returns why runs could not be submitted, by name."""

LONGEST_NAME = 100
"""The most characters of a run's name (RUN_NAME in growctl/ladder/checks.py)."""

_LONGEST_VALUE = 32
_DIGEST = 8
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


def set_requests(
    schedule: str,
    points: Sequence[Point],
    runs_dir: Path,
    *,
    name: str | None = None,
    with_controls: bool | None = None,
    sources: Sequence[Path] = (),
    until: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> list[LadderRequest]:
    """A request for the run at each of `points` of `schedule`, in a set called `name`, or else as the schedule is.

    The other arguments are those of `load_schedule` and `LadderRequest.of`. Raises ScheduleError for the first point
    whose schedule is invalid, RunError if a run cannot be started or resumed.
    """
    told: set[str] = set()

    def tell_once(line: str) -> None:
        if line not in told:
            told.add(line)
            tell(line)

    if name is None:
        name = load_schedule(schedule, points[0].overrides, runs_dir=runs_dir).name
        assert name is not None
    requests = []
    for run_name, point in zip(run_names(name, [point.values for point in points]), points, strict=True):
        loaded = load_schedule(schedule, point.overrides, runs_dir=runs_dir, run=run_name, tell=tell_once)
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


def is_done(request: LadderRequest) -> bool:
    """Whether a ladder and its controls have nothing left to train."""
    left = (plan for part in request.parts() for plan in left_to_train(part.schedule, request.directory(part)))
    return not any(request.trains(plan.index) for plan in left)


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


def run_names(group: str, points: Sequence[dict[str, Any]]) -> list[str]:
    """The name of the run at each of `points`, all with values of the same keys, in the set called `group`.

    Equal points get equal names, whichever others there are, unless two different values look alike in a name. Those
    names, and names that would be too long, end in a hash.
    """
    short = short_keys(list(points[0]))
    plain = ["-".join([group, *(f"{short[key]}-{_shown(value)}" for key, value in point.items())]) for point in points]
    often = Counter(plain)
    return [
        name if often[name] == 1 and len(name) <= LONGEST_NAME else _with_digest(name, point)
        for name, point in zip(plain, points, strict=True)
    ]


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """The shortest ends of dotted keys that tell them apart and begin with a word."""

    def end(key: str, length: int) -> str:
        return ".".join(key.split(".")[-length:])

    short = {}
    for key in keys:
        length = 1
        while end(key, length) != key and (
            end(key, length)[0].isdigit()
            or any(other != key and end(other, length) == end(key, length) for other in keys)
        ):
            length += 1
        short[key] = end(key, length)
    return short


def _shown(value: Any) -> str:
    """A value as part of a name; the end of a long one, which is where paths differ."""
    if isinstance(value, float):
        value = f"{value:.6g}".replace("e+", "e")  # a name cannot hold the +
    text = value if isinstance(value, str) else json.dumps(value)
    return _NOT_IN_NAMES.sub("-", text).strip("-")[-_LONGEST_VALUE:].strip("-") or "empty"


def _with_digest(name: str, point: dict[str, Any]) -> str:
    """`name`, cut if it is too long, with a hash of it and of the point's values."""
    digest = hashlib.sha256(json.dumps([name, point], sort_keys=True, default=repr).encode()).hexdigest()[:_DIGEST]
    return f"{name[: LONGEST_NAME - _DIGEST - 1].rstrip('-')}-{digest}"


def train_set(requests: Sequence[LadderRequest], screen: Screen, submit: Submit) -> dict[str, str]:
    """Starts or resumes each run of a set that is not finished, or submits it to SLURM; returns why runs failed.

    The reasons are by name. Raises Stopped on a signal, after the current run has saved; the same call resumes.
    """
    failures: dict[str, str] = {}
    queued: list[LadderRequest] = []
    for number, request in enumerate(requests, 1):
        name, where = request.ladder.name, f"run {number} of {len(requests)}"
        if is_done(request):
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
