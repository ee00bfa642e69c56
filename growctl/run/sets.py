"""A set of runs, such as the seeds of one schedule or the points of a sweep: its requests, its training, its table.

hydra's own parser reads `learning_rate.peak=2e-3,4e-3 seed=range(0,3)`, and a key's values are those that hydra's own
sweeper would try. Runs are named after the swept keys: NAME-peak-0.002-seed-1.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from growctl.ladder.load import load_schedule
from growctl.ladder.stage_plans import plan_run, total_flops
from growctl.launch.resolve import machines_of
from growctl.run.requests import LadderRequest, RunRequest
from growctl.run.screen import Screen
from growctl.run.signals import Stopped
from growctl.run.slurm_jobs import AlreadySubmitted, submit
from growctl.runs.directory import RunSet
from growctl.runs.status import RunStatus, find_status
from growctl.runs.status_sections import run_columns
from growctl.runs_dir import RunPaths
from growctl.schedule.errors import shown
from growctl.text.formatting import scientific, short_count
from growctl.text.section import Cell, Column, Section, Table, figure, rows_of
from model.errors import Failure, UserError

MOST_RUNS = 10_000
SEED = "seed"
"""The key of a schedule that --seeds sets."""

LONGEST_NAME = 100
"""The most characters of a run's name (RUN_NAME in growctl/runs_dir.py)."""

_LONGEST_VALUE = 32
_DIGEST = 8
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_UNREADABLE = (HydraException, OmegaConfBaseException, ValueError, RecursionError)


class SweepError(UserError):
    """The runs of a sweep cannot be told from what was given."""


@dataclass(frozen=True)
class Point:
    """One point of a sweep: one run."""

    overrides: tuple[str, ...]
    """All overrides of its schedule, each with one value."""
    values: dict[str, Any]
    """The values of the swept keys."""


def grid(overrides: Sequence[str], seeds: str | None = None) -> list[Point]:
    """The points of a sweep: all combinations of the values given, the last key changing fastest.

    `seeds`: values of the seed, of which there may be one. Overrides with one value, also those that cannot be read,
    are passed on as they are: the schedule judges them. Raises SweepError if no key has several values, a swept key is
    given twice, its values cannot be listed or are not different, or there are more than MOST_RUNS points.
    """
    columns: list[list[Point]] = []
    keys: Counter[str] = Counter()
    for text in (*overrides, *([f"{SEED}={seeds}"] if seeds is not None else ())):
        override = _parsed(text)
        is_seed = seeds is not None and len(columns) == len(overrides)
        keys[override.key_or_group if override else ""] += 1
        if override and override.is_sweep_override():
            columns.append(_points(override, text))
        else:
            value = {SEED: override.value()} if override and is_seed else {}
            columns.append([Point((text,), value)])
    swept = {key for column in columns for key in column[0].values}
    if not swept:
        raise SweepError(
            "no key has several values; write learning_rate.peak=2e-3,4e-3 or seed=range(0,3), or train a single run "
            "with growctl run"
        )
    if twice := [key for key in swept if keys[key] > 1]:
        raise SweepError(f"{twice[0]} is given twice; give all its values at once")
    if "name" in swept:
        raise SweepError("name=...: the runs are named after the swept keys; name them all with --name")
    combinations = list(islice(product(*columns), MOST_RUNS + 1))
    if len(combinations) > MOST_RUNS:
        raise SweepError(f"this would train more than {MOST_RUNS:,} runs; give fewer values")
    return [
        Point(
            tuple(override for choice in row for override in choice.overrides),
            {key: value for choice in row for key, value in choice.values.items()},
        )
        for row in combinations
    ]


def _parsed(text: str) -> Override | None:
    try:
        return OverridesParser.create().parse_override(text)
    except _UNREADABLE:
        return None


def _points(override: Override, given: str) -> list[Point]:
    """A point for each value of a swept key; raises SweepError if they are no list."""
    try:
        texts = list(islice(override.sweep_string_iterator(), MOST_RUNS + 1))
    except _UNREADABLE as error:  # interval() and glob() name no values
        raise SweepError(
            f"override {shown(given)}: the values cannot be listed: {error}; use 1,2 or range(1,3)"
        ) from None
    if len(set(texts)) < max(1, len(texts)):
        raise SweepError(f"override {shown(given)}: must give one or more values, each of them once")
    single = [f"{override.get_key_element()}={text}" for text in texts]
    return [Point((text,), {override.key_or_group: one.value()}) for text in single if (one := _parsed(text))]


def run_names(group: str, points: Sequence[dict[str, Any]]) -> list[str]:
    """The name of the run at each of `points`, all with values of the same keys, in the set called `group`.

    Equal points get equal names, whichever others there are, unless two different values look alike in a name. Those
    names, and names that would be too long, end in a hash.
    """
    short = short_keys(list(points[0]))
    plain = [
        "-".join([group, *(f"{short[key]}-{_in_name(value)}" for key, value in point.items())]) for point in points
    ]
    often = Counter(plain)
    return [
        name if often[name] == 1 and len(name) <= LONGEST_NAME else _with_digest(name, point)
        for name, point in zip(plain, points, strict=True)
    ]


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """The last words of dotted keys; whole keys where that is a number or another key has it too."""
    last = {key: key.rpartition(".")[2] for key in keys}
    often = Counter(last.values())
    return {key: key if word.isdigit() or often[word] > 1 else word for key, word in last.items()}


def _in_name(value: Any) -> str:
    """A value as part of a name; the end of a long one, which is where paths differ."""
    if isinstance(value, float):
        value = f"{value:.6g}".replace("e+", "e")  # a name cannot hold the +
    text = value if isinstance(value, str) else json.dumps(value)
    return _NOT_IN_NAMES.sub("-", text).strip("-")[-_LONGEST_VALUE:].strip("-") or "empty"


def _with_digest(name: str, point: dict[str, Any]) -> str:
    """`name`, cut if it is too long, with a hash of it and of the point's values."""
    digest = hashlib.sha256(json.dumps([name, point], sort_keys=True, default=repr).encode()).hexdigest()[:_DIGEST]
    return f"{name[: LONGEST_NAME - _DIGEST - 1].rstrip('-')}-{digest}"


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
        requests.append(LadderRequest.of(loaded, schedule, runs_dir, run_name, with_controls, sources, until, belongs))
    for request in requests:
        request.checked(machines_of(request.ladder.schedule))
    return requests


def train_set(requests: Sequence[LadderRequest], screen: Screen) -> dict[str, str]:
    """Starts or resumes each run of a set that is not finished, or submits it to SLURM; returns why runs failed.

    The reasons are by name. Raises Stopped on a signal, after the current run has saved; the same call resumes.
    """
    from growctl.run.runner import run

    failures: dict[str, str] = {}
    submitted: list[list[str]] = []
    for number, request in enumerate(requests, 1):
        name, where = request.ladder.name, f"run {number} of {len(requests)}"
        launch = request.ladder.schedule.launch
        if not any(request.left(part) for part in request.parts()):
            screen.message(f"{name}: finished already, skipped ({where})")
            continue
        screen.message(f"{name}: {where}")
        try:
            if launch.cluster == "slurm":
                most = launch.slurm.array_limit  # a run waits until the run that many places before it has ended
                behind = submitted[-most] if most and most <= len(submitted) else []
                submitted.append(submit(request, screen, behind))
            else:
                run(request, screen)
        except Stopped:
            screen.message(f"stopped in {name}, {where}")
            raise
        except AlreadySubmitted as error:
            screen.message(f"{name}: {error}")
        except (UserError, Failure, OSError) as error:
            failures[name] = str(error)
            screen.message(f"{name}: failed: {error}")
    return failures


@dataclass(frozen=True, kw_only=True)
class SweptRun(RunStatus):
    """A run of the set, or a control of one."""

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


@dataclass(frozen=True)
class SweepDocument:
    """The runs of a set, in the order of the grid, each followed by its controls. Unknown values are null."""

    runs_dir: Path
    group: str
    """The name of the set."""
    runs: tuple[SweptRun, ...]


def describe_set(requests: Sequence[LadderRequest], failures: Mapping[str, str]) -> SweepDocument:
    """The runs of a set as they are now, whether or not they have begun; `failures`: why runs failed, by name."""
    runs_dir, run_set = requests[0].runs_dir, requests[0].ladder.run_set
    assert run_set is not None
    names = [request.ladder.name for request in requests if RunPaths(runs_dir / request.ladder.name).exists()]
    begun = {run.name: run for run in find_status(runs_dir, names)} if names else {}
    runs = [
        _swept(part, request, begun.get(part.name), failures.get(part.name))
        for request in requests
        for part in request.parts()
    ]
    return SweepDocument(runs_dir, run_set.group, tuple(runs))


def _swept(part: RunRequest, request: LadderRequest, run: RunStatus | None, failure: str | None) -> SweptRun:
    run = run or RunStatus(
        *(part.name, "not started", str(request.directory(part)), part.label, part.control, part.control_of),
        **asdict(part.run_set) if part.run_set else {},
    )
    if failure is not None and run.state != "finished":
        run = replace(run, state="failed", reason=failure)
    plans = [plan for plan in plan_run(part.schedule, request.steps_done(part)) if request.trains(plan.index)]
    stages = [stage for stage in run.stages if not stage.branch_of]
    return SweptRun(
        **vars(run),
        final_loss=stages[-1].validation_loss if stages and run.state == "finished" else None,
        num_parameters=tuple(plan.num_parameters for plan in plans if not plan.branch_of),
        tokens=sum(plan.budget_tokens for plan in plans),
        flops=total_flops(plans).total,
        flops_left=total_flops(request.left(part)).total,
    )


def sweep_section(document: SweepDocument) -> Section:
    """The runs of a set with their states, what they cost, and how they ended."""
    columns = (
        *run_columns(document.runs, {run.name for run in document.runs}),
        Column("parameters", cell=lambda run: Cell(_sizes(run))),
        Column("tokens", cell=lambda run: figure(run.tokens, short_count)),
        Column("FLOPs", cell=lambda run: figure(run.flops, scientific)),
        Column("final loss", cell=lambda run: Cell("" if run.final_loss is None else f"{run.final_loss:.4f}")),
    )
    tokens, flops = (sum(getattr(run, key) for run in document.runs) for key in ("tokens", "flops"))
    sums = [Cell("total"), Cell(""), Cell(""), figure(tokens, short_count), figure(flops, scientific), Cell("")]
    return Section("sweep", "", (Table.of("runs", columns, [*rows_of(columns, document.runs), sums]),))


def _sizes(run: SweptRun) -> str:
    return " -> ".join(map(short_count, dict.fromkeys((run.num_parameters[0], run.num_parameters[-1]))))
