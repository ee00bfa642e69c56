"""The runs that a command requests, and the checks on them before anything is written.

A run keeps its schedule: other settings that affect the result stop it.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from growctl.ladder.conditions import SAME_SAMPLES, earlier_runs, reused_steps
from growctl.ladder.costs import stage_checkpoint_bytes
from growctl.ladder.stage_plans import StagePlan, paths_of, plan_run
from growctl.ladder.warnings import too_slow
from growctl.launch.machines import Devices, Machines
from growctl.launch.resolve import uneven_batch
from growctl.ledger.lines import record_start
from growctl.runs.directory import RunError, RunSet, controls_of, own_schedule, read_run_set, steps_done
from growctl.runs.lock import find_holder
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.errors import shown
from growctl.schedule.sources import missing_data
from growctl.text.formatting import byte_count
from growctl.text.suggestion import did_you_mean
from growctl.trackers.adapters import missing_package
from model.errors import Failure
from stages.checkpoint.disk_full import free_bytes
from stages.checkpoint.files import write_file

NO_EFFECT: dict[str, Any] = {
    **dict.fromkeys(("launch", "controls", "samples", "trackers"), True),
    "data": SAME_SAMPLES,
    "checkpoint": {"keep", "keep_every", "keep_trunk", "check_space"},
}
"""The keys that do not affect the result, as pydantic's `exclude`."""


class RunFailed(Failure):
    """Training failed: exit code 1."""


@dataclass(frozen=True)
class RunRequest:
    """One run: a ladder, or a control of one."""

    name: str
    schedule: Schedule
    label: str
    """The schedule's path or name, as the user gave it."""

    control: str | None = None
    control_of: str | None = None
    run_set: RunSet | None = None
    """The set of runs that it belongs to; None for a run of its own."""

    tunes: bool = False
    """As in `ControlPlan`."""

    awaits: tuple[str, ...] = ()
    """As in `ControlPlan`."""


@dataclass(frozen=True)
class LadderRequest:
    """A ladder, its controls and the directory for both."""

    ladder: RunRequest
    runs_dir: Path
    wants_controls: bool
    """Whether the controls are to be trained sometime. The run records it."""
    sources: tuple[Path, ...] = ()
    """Runs directories in which to look for checkpoints to reuse; empty: none are reused."""
    last_stage: int | None = None
    """The index of the last stage to train; None: all stages."""

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        label: str,
        runs_dir: Path,
        name: str | None,
        with_controls: bool | None = None,
        sources: Sequence[Path] = (),
        until: str | None = None,
        run_set: RunSet | None = None,
    ) -> "LadderRequest":
        """A request for the ladder of `schedule`, named `name` or else as the schedule is.

        `with_controls`: as the command says; None: as the run has recorded, at first with them. `until` is the name of
        the last stage to train. `run_set`: the set of runs that it begins in; None: as the run has recorded. Raises
        RunError if the schedule has no such stage.
        """
        name = name or schedule.name
        assert name is not None
        run = RunPaths(runs_dir / name)
        last_stage = None if until is None else stage_index(schedule, until)
        renamed = schedule.model_copy(update={"name": name})
        ladder = RunRequest(name, renamed, label, run_set=run_set or read_run_set(run))
        if with_controls is None:
            with_controls = not run.no_controls.exists()
        return cls(ladder, runs_dir, with_controls, tuple(sources), last_stage)

    @property
    def leaves_controls_out(self) -> bool:
        """Whether the schedule has controls that are not to be trained."""
        return bool(self.ladder.schedule.controls) and not self.wants_controls

    def record_choices(self) -> None:
        """Records in the ladder's directory, which exists, this start, its set and whether it leaves out controls."""
        run = RunPaths(self.directory(self.ladder))
        record_start(run, ["growctl", *sys.argv[1:]])
        if self.ladder.run_set:
            write_file(run.run_set, TypeAdapter(RunSet).dump_json(self.ladder.run_set, indent=1))
        run.no_controls.unlink(missing_ok=True)
        if self.leaves_controls_out:
            run.no_controls.touch()

    def directory(self, request: RunRequest) -> Path:
        """The run directory of `request`."""
        return self.runs_dir / request.name

    def trains(self, stage: int) -> bool:
        """Whether the request includes the stage with the index `stage`."""
        return self.last_stage is None or stage <= self.last_stage

    def steps_done(self, request: RunRequest) -> list[int]:
        """The number of steps of each finished stage of a run, oldest first."""
        return steps_done(request.schedule, self.directory(request))

    def left(self, request: RunRequest) -> list[StagePlan]:
        """The stages and releases of a run that are asked for and not finished."""
        return left_to_train(request.schedule, self.directory(request), self.last_stage)

    def controls(self) -> list[RunRequest]:
        """The controls to train; none of a ladder that is to end early, because all its stages decide their budgets.

        With `growth.when: slope`, the budgets are final only after the ladder is done.
        """
        if not self.wants_controls or self.last_stage is not None:
            return []
        ladder = self.ladder
        of_ladder = (ladder.name, ladder.run_set)
        return [
            RunRequest(plan.name, plan.schedule, ladder.label, plan.kind, *of_ladder, plan.tunes, plan.awaits)
            for plan in controls_of(ladder.schedule, self.steps_done(ladder), RunPaths(self.directory(ladder)))
        ]

    def control(self, name: str) -> RunRequest:
        """The control called `name`; raises RunError if its peak is not known, or if it cannot be resumed."""
        [control] = [each for each in self.controls() if each.name == name]
        if control.awaits:
            raise RunError(
                f"{name} trains at the peak of {', '.join(control.awaits)} that ends lowest, and not all have ended, "
                "or all have diverged; resume them, or change the peaks of its controls entry"
            )
        self.check_same_run(control)
        return control

    def parts(self) -> list[RunRequest]:
        """The ladder and the controls to train."""
        return [self.ladder, *self.controls()]

    def checked(self, machines: Machines) -> list[RunRequest]:
        """The ladder and its controls; raises RunError if one of them cannot be started or resumed on `machines`.

        A ladder that has begun, or whose dataset is prepared, no longer needs the text.
        """
        schedule = self.ladder.schedule
        over = len(self.steps_done(self.ladder)) == len(schedule.stages)
        if missing := missing_package(schedule.trackers):
            raise RunError(missing)
        requests = self.parts()
        for request in requests:
            if uneven := uneven_batch(request.schedule, machines.devices):
                raise RunError(uneven)
            if request.control is None or ((schedule.growth.when == "fixed" or over) and not request.awaits):
                self.check_same_run(request)
        begun = RunPaths(self.directory(self.ladder)).has_begun()
        if not begun and (missing := missing_data(schedule.data, RunsPaths(self.runs_dir).datasets)):
            raise RunError(missing)
        return requests

    def check_same_run(self, request: RunRequest) -> None:
        """Raises RunError if the directory of `request` is not a run, or has a schedule with another result.

        The schedule of a run that has never started may change, for example after its job was removed from the queue.
        """
        directory = self.directory(request)
        run = RunPaths(directory)
        is_other = directory.exists() and any(not path.name.startswith(".") for path in directory.iterdir())
        if run.imported.exists() or (is_other and not run.schedule.exists()):
            raise RunError(f"{directory} exists and is not a growctl run; choose another name with --name")
        if not run.schedule.exists() or not run.has_begun():
            return
        if difference := first_difference(own_schedule(run.schedule), request.schedule):
            raise RunError(
                f"{directory} keeps its schedule: {difference}; choose another name with --name: a new run takes over "
                "what other runs have trained in the same way"
            )


def reuse_sources(runs_dir: Path, further: Sequence[Path], no_reuse: bool) -> tuple[Path, ...]:
    """The runs directories from which a run reuses checkpoints, its own first.

    Raises RunError if one does not exist.
    """
    if no_reuse and further:
        raise RunError("--no-reuse and --reuse-from contradict each other; give one of them")
    for directory in further:
        if not RunsPaths(directory).all_runs():
            raise RunError(f"--reuse-from {directory}: there are no runs in it")
    return () if no_reuse else (runs_dir, *further)


def stage_index(schedule: Schedule, name: str) -> int:
    """The index of the stage called `name`; raises RunError if the schedule has none."""
    names = [stage.name for stage in schedule.stages]
    if name not in names:
        hint = did_you_mean(name, names)
        raise RunError(f"--until {name!r}: the schedule has no such stage; its stages are {', '.join(names)}{hint}")
    return names.index(name)


def left_to_train(schedule: Schedule, directory: Path, last_stage: int | None = None) -> list[StagePlan]:
    """The stages and releases that the run in `directory` has not finished, in the order in which it trains them.

    Up to those of the stage with the index `last_stage`; None: all.
    """
    done = steps_done(schedule, directory)

    def over(plan: StagePlan) -> bool:
        return plan.index < len(done) and (not plan.branch_of or paths_of(RunPaths(directory), plan).final.exists())

    asked = (plan for plan in plan_run(schedule, done) if last_stage is None or plan.index <= last_stage)
    return [plan for plan in asked if not over(plan)]


def schedule_yaml(schedule: Schedule) -> str:
    """The schedule as a run stores it, with every default written out."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(schedule.model_dump(mode="json")))


def check_time(
    requests: Sequence[RunRequest],
    runs_dir: Path,
    devices: Devices,
    sources: Sequence[Path] = (),
    last: int | None = None,
) -> None:
    """Raises RunError if one of `requests`, up to its stage with the index `last`, would train for decades on CPUs.

    What it can take over from runs in the directories `sources` takes no time.
    """
    for request in requests:
        left = left_to_train(request.schedule, runs_dir / request.name, last)
        flops = [plan.flops.total for plan in left]
        if too_slow(request.name, sum(flops), request.schedule, devices):
            earlier = [run for source in sources for run in earlier_runs(source)]
            taken = reused_steps(request.schedule, left, earlier)
            new = (each * (1 - steps / plan.num_steps) for each, steps, plan in zip(flops, taken, left, strict=True))
            if slow := too_slow(request.name, sum(new), request.schedule, devices):
                raise RunError(slow)


def check_space(
    requests: Iterable[RunRequest], runs_dir: Path, devices: Devices, last_stage: int | None = None
) -> None:
    """Raises RunError if the checkpoints that `requests` will still write need more space than is free in `runs_dir`.

    `devices` decide the precision. Counts the stages up to index `last_stage`; None: all of them. Skips runs whose
    schedule has `checkpoint.check_space: false`, and runs that another growctl holds: `hold` reports those.
    """
    asked = [
        request
        for request in requests
        if request.schedule.checkpoint.check_space and find_holder(runs_dir / request.name) is None
    ]
    needed = sum(remaining_bytes(request, runs_dir / request.name, devices, last_stage) for request in asked)
    free = free_bytes(runs_dir)
    if needed > free:
        raise RunError(
            f"{', '.join(request.name for request in asked)}: the checkpoints still to be written need about "
            f"{byte_count(needed)}, but only {byte_count(free)} are free in {runs_dir}; free some space, keep fewer "
            "checkpoints (checkpoint.keep, checkpoint.keep_every), or start anyway with checkpoint.check_space=false"
        )


def remaining_bytes(request: RunRequest, directory: Path, devices: Devices, last_stage: int | None = None) -> int:
    """The bytes that unfinished stages and releases, up to stage `last_stage`, will still add to those on disk."""
    schedule = request.schedule
    precision = devices.precision(schedule.training.precision)
    total = 0
    for plan in left_to_train(schedule, directory, last_stage):
        stage = paths_of(RunPaths(directory), plan)
        within = [*stage.checkpoints().values(), *stage.leftovers()]  # these are removed before anything is written
        there = sum(path.stat().st_size for folder in within for path in folder.rglob("*") if path.is_file())
        total += max(0, stage_checkpoint_bytes(schedule, plan, precision) - there)
    return total


def first_difference(old: Schedule, new: Schedule) -> str | None:
    """The first setting that affects the result and differs, as a clause; None if there is none.

    Paths of the same files are equal.
    """
    was, now = ([stage.name for stage in schedule.stages] for schedule in (old, new))
    if len(was) != len(now):
        return f"it has the stages {', '.join(was)}, and this schedule has {', '.join(now)}"
    one, other = (
        schedule.model_copy(update={"data": schedule.data.in_one_spelling()}).model_dump(mode="json", exclude=NO_EFFECT)
        for schedule in (old, new)
    )
    for key, before, after in _differences(one, other):
        return f"{key} = {shown(after)}, but it was started with {shown(before)}"
    return None


def _differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old | new:
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, after, f"{path}.{i}")
    elif old != new:
        yield path, old, new
