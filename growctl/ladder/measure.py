"""`growctl plan --measure`: times real optimizer steps of every size of a plan on this machine."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from growctl.ladder.costs import MeasuredSize, Measurements, Plan, RunCost, StageCost
from growctl.ladder.stage_plans import worker_spec
from growctl.launch.devices import local_devices
from growctl.launch.local import local_launch
from growctl.launch.machines import Devices
from growctl.launch.resolve import schedule_devices_here
from growctl.launch.worker_logs import failure_reason
from growctl.launch.workers import Workers
from growctl.schedule.blocks import Schedule
from stages.probe.records import RESULT, MeasuredSteps
from stages.spec import TrainSpec
from stages.stage_dir import StagePaths

MICRO_BATCHES = 2
"""Most micro-batches in a timed step: the last one and one before it. Longer steps only repeat the latter."""


def measure_sizes(plan: Plan, on_start: Callable[[str], None]) -> Measurements:
    """Times each distinct model, micro-batch and context of a plan once, on this machine's devices.

    Calls `on_start` with a line before each measurement. If a size cannot be measured, for example for lack of memory,
    `failures` gives the reason. Nothing stays on disk.
    """
    devices = _devices_here(plan.schedule)
    sizes: dict[MeasuredSize, tuple[RunCost, StageCost]] = {}
    for run in plan.runs:
        for stage in run.trunk:
            if stage.micro_batch_size:
                sizes.setdefault((stage.plan.model, stage.micro_batch_size, stage.sequence_length), (run, stage))
    steps: dict[MeasuredSize, MeasuredSteps] = {}
    failures, where = [], "this machine"
    for number, (size, (run, stage)) in enumerate(sizes.items(), 1):
        name = f"stage {stage.name} of {run.name}"
        on_start(f"measuring {name}, micro-batches of {size[1]} ({number} of {len(sizes)})")
        measured = _measured(run.schedule, stage, devices)
        if isinstance(measured, str):
            failures.append(f"{name[0].upper()}{name[1:]} could not be measured: {measured}")
        else:
            steps[size], where = measured, f"{devices.per_machine} x {measured.device}"
    return Measurements(where, devices.per_machine, steps, tuple(failures))


def _devices_here(schedule: Schedule) -> Devices:
    """The devices of a local run, or this machine's if the run needs a cluster."""
    launch = schedule.launch
    if launch.cluster == "local":
        return schedule_devices_here(schedule)
    devices = local_devices("auto", schedule.shared_batch, launch.environment)
    most = devices.per_machine if launch.devices == "auto" else launch.devices
    return Devices(min(devices.per_machine, most), devices.type, devices.fast_bf16)


def _measured(schedule: Schedule, stage: StageCost, devices: Devices) -> MeasuredSteps | str:
    """What the workers measured, or the reason why they could not."""
    with TemporaryDirectory(prefix="growctl-measure-") as folder:
        paths, result = StagePaths(Path(folder)), Path(folder) / RESULT
        paths.spec.write_text(_spec(schedule, stage, devices.per_machine, folder).model_dump_json())
        paths.log.touch()
        launch = local_launch(paths.spec, devices.per_machine, devices.type == "cuda", module="stages.probe.time_steps")
        with Workers(launch, paths.log) as workers:
            workers.wait()
        if result.exists():
            return MeasuredSteps.model_validate_json(result.read_bytes())
        return failure_reason(paths.log, 0)


def _spec(schedule: Schedule, stage: StageCost, num_devices: int, folder: str) -> TrainSpec:
    """The spec that times a stage's steps without its data, with just enough micro-batches to time both kinds."""
    micro = stage.micro_batch_size
    assert micro is not None
    per_step = stage.batch_size // (micro * stage.num_devices)
    return worker_spec(
        schedule,
        stage.plan,
        attempt=1,
        directory=folder,
        dataset="",
        initial=None,
        resume=None,
        samples_seen=0,
        batch_size=max(1, min(MICRO_BATCHES, per_step)) * micro * num_devices,
        micro_batch_size=micro,
        generations=(),
        ramp_steps=0,
        anneal_steps=None,
        trigger=None,
        launched_at=0.0,
    )
