"""`growctl plan --measure`: times real optimizer steps of every size of a plan on this machine."""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from growctl.ladder.costs import MeasuredSize, MeasuredSteps, Measurements, PlanCosts, RunCost, StageCost
from growctl.ladder.train_spec import worker_spec
from growctl.launch.devices import local_devices
from growctl.launch.local import local_launch
from growctl.launch.resolve import schedule_devices_here
from growctl.launch.worker_logs import failure_reason
from growctl.launch.workers import Workers
from growctl.schedule.batches import shared_batch
from growctl.schedule.blocks import Schedule
from stages.probe.measured_steps import RESULT
from stages.spec import TrainSpec
from stages.stage_dir import StagePaths

MICRO_BATCHES = 2
"""Most micro-batches in a timed step: the last one and one before it. Longer steps only repeat the latter."""


def measure_sizes(costs: PlanCosts, on_start: Callable[[str], None]) -> Measurements:
    """Times each distinct model, micro-batch and context of a plan once, on this machine's devices.

    Calls `on_start` with a line before each measurement. If a size cannot be measured, for example for lack of memory,
    `failures` gives the reason. Nothing stays on disk.
    """
    schedule = costs.ladder.schedule
    num_devices, gpus = _devices_here(schedule)
    sizes: dict[MeasuredSize, tuple[RunCost, StageCost]] = {}
    for run in costs.runs:
        for cost in run.stages:
            if cost.micro_batch_size:
                size = (cost.plan.model, cost.micro_batch_size, cost.plan.batch.sequence_length)
                sizes.setdefault(size, (run, cost))
    steps, failures, device = {}, [], ""
    for number, (size, (run, cost)) in enumerate(sizes.items(), 1):
        name = f"stage {cost.plan.name} of {run.name}"
        on_start(f"measuring {name}, micro-batches of {size[1]} ({number} of {len(sizes)})")
        found, reason = _measured(run, cost, num_devices, gpus)
        if found is None:
            failures.append(f"{name[0].upper()}{name[1:]} could not be measured: {reason}")
            continue
        steps[size] = MeasuredSteps(**{field.name: found[field.name] for field in fields(MeasuredSteps)})
        device = found["device"]
    where = f"{num_devices} x {device}" if device else "this machine"
    return Measurements(where, num_devices, steps, tuple(failures))


def _devices_here(schedule: Schedule) -> tuple[int, bool]:
    """(number of ranks, whether they are GPUs): those of a local run, or this machine's if the run needs a cluster."""
    launch = schedule.launch
    if launch.cluster == "local":
        found = schedule_devices_here(schedule)
        return found.per_machine, found.type == "cuda"
    found = local_devices("auto", shared_batch(schedule), launch.environment)
    most = found.per_machine if launch.devices == "auto" else launch.devices
    return min(found.per_machine, most), found.type == "cuda"


def _measured(run: RunCost, cost: StageCost, num_devices: int, gpus: bool) -> tuple[dict[str, Any] | None, str]:
    """(the workers' results, "") or (None, the reason)."""
    folder = Path(tempfile.mkdtemp(prefix="growctl-measure-"))
    try:
        spec, log = StagePaths(folder).spec, StagePaths(folder).log
        spec.write_text(_spec(run.schedule, cost, num_devices, folder).model_dump_json())
        log.touch()
        with Workers(local_launch(spec, num_devices, gpus, module="stages.probe.time_steps"), log) as workers:
            workers.wait()
        result = folder / RESULT
        if result.exists():
            return json.loads(result.read_text()), ""
        return None, failure_reason(log, 0)
    finally:
        shutil.rmtree(folder)


def _spec(schedule: Schedule, cost: StageCost, num_devices: int, folder: Path) -> TrainSpec:
    """The spec that times a stage's steps without its data, with just enough micro-batches to time both kinds."""
    plan, micro = cost.plan, cost.micro_batch_size
    assert micro is not None
    per_step = plan.batch.batch_size // (micro * cost.num_devices)
    return worker_spec(
        schedule,
        plan,
        attempt=1,
        directory=str(folder),
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
