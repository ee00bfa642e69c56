"""What the stages of a schedule and of its controls will cost: memory, time, money and disk. None: unknown.

One tree of records: `growctl plan --json` prints it, and growctl/ladder/plan.py shows it as tables.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import Any

from growctl.ladder.conditions import Trained, reused_steps
from growctl.ladder.datasets import DatasetSizes, MixturePart, epochs_after, mixture_parts
from growctl.ladder.stage_plans import StagePlan, plan_run
from growctl.launch.machines import Devices
from growctl.schedule.blocks import Schedule
from model.flops import Flops
from model.precision import Precision
from model.shapes import ModelConfig
from stages.engine.memory import Memory, TrainingMemory, engine_checkpoint_bytes, parameters_checkpoint_bytes
from stages.probe.records import MeasuredSteps

HEADROOM = 0.1
"""Share of a device's memory that the plan leaves free for the CUDA context, NCCL's buffers and fragmentation."""

MeasuredSize = tuple[ModelConfig, int, int]
"""A model, its micro-batch size and its context. `plan --measure` times each once."""


@dataclass(frozen=True)
class Measurements:
    """All results of `plan --measure`."""

    where: str
    """The devices that ran the measurement."""

    num_devices: int
    steps: Mapping[MeasuredSize, MeasuredSteps]
    failures: tuple[str, ...] = ()
    """One sentence per size that could not be measured, with the reason."""


@dataclass(frozen=True, kw_only=True)
class PlannedCost:
    """The cost of a stage or a release, or a sum of such costs. A sum is None if one of its terms is unknown."""

    budget_tokens: int
    """Data tokens to train on, in whole steps."""

    flops: float
    """Training FLOPs, forward and backward."""

    flops_by_part: Flops
    recomputed_flops: float
    """FLOPs that activation checkpointing adds; `flops` does not contain them."""

    wall_seconds: float | None
    """Time of the optimizer steps alone; None if the devices' speed is not known."""

    device_seconds: float | None
    """Wall seconds x devices."""

    money: float | None
    """In the currency of launch.hardware.price_per_device_hour; None without it."""

    evaluation_flops: float | None
    """FLOPs of evaluations, which are no part of `flops`; None if the size of the validation set is not known."""

    reused_flops: float
    """The part of `flops` that the run does not train, because it takes over the checkpoints of an earlier run or of
    one above it in the plan. Times, money and evaluations are without it."""

    checkpoint_bytes: int
    """Disk space of the checkpoints when the stage is done: `final/`, and those within the stage that are kept."""

    @property
    def trained_flops(self) -> float:
        """The part of `flops` that the run trains."""
        return self.flops - self.reused_flops


@dataclass(frozen=True, kw_only=True)
class StageCost(PlannedCost):
    """A stage or a release, and what it will cost on its planned devices."""

    name: str
    branch_of: str | None
    """The stage that a release branches from; None for a stage of the ladder."""

    num_layers: int
    num_parameters: int
    num_embedding_parameters: int
    num_read_parameters: int | None
    """Parameters that a data token reads; None: all."""
    num_steps: int
    batch_size: int
    """Sequences of an optimizer step, over all devices."""

    sequence_length: int
    """Its context, in data tokens."""

    learning_rate_scale: float
    """Factor on the learning rate for its batch (`learning_rate.batch_scaling`)."""

    tokens_per_parameter: float
    """Data tokens from the start of the ladder, or of its start checkpoint, to the stage's end, per parameter."""

    epochs: float | None
    """Passes over the training data from the run's start to the stage's end; of a mixture, over the source that is read
    most often. None if the size of the data is not known."""

    num_devices: int
    memory_bytes: Memory | None
    """Memory of one device with `micro_batch_size`; None without one."""

    micro_batch_size: int | None
    """Sequences that a device computes at a time; None if the batch cannot be split evenly over the devices."""

    largest_micro_batch_size: int | None
    """The largest that fits into a device's memory, 0 if none fits; None if that memory is not known."""

    tokens_per_second: float | None
    """Data tokens per second, over all devices."""

    mfu: float | None
    """Model FLOPs utilisation: the share of the devices' peak FLOPs that `wall_seconds` implies, between 0 and 1."""

    mixture: tuple[MixturePart, ...]
    """What it reads of each source of a mixture; empty without one."""

    measured: MeasuredSteps | None
    """None without --measure, and for a size that could not be measured."""

    plan: StagePlan
    """Not in documents."""


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """The costs of a ladder or a control."""

    name: str
    stages: tuple[StageCost, ...]
    """All stages, each followed by its release if it has one."""

    total: PlannedCost
    """The sum over them."""

    schedule: Schedule
    """Not in documents."""

    @property
    def trunk(self) -> tuple[StageCost, ...]:
        """The stages without the releases."""
        return tuple(stage for stage in self.stages if stage.branch_of is None)

    @property
    def largest(self) -> StageCost:
        """The last stage or its release."""
        return self.stages[-1]


@dataclass(frozen=True, kw_only=True)
class ControlCost(RunCost):
    """A control, and what it will cost."""

    kind: str


@dataclass(frozen=True, kw_only=True)
class Plan(RunCost):
    """What a schedule will cost: its ladder, and its controls. Unknown values are None."""

    controls: tuple[ControlCost, ...]
    total_with_controls: PlannedCost
    warnings: tuple[str, ...] = ()
    """Problems of the plan, one sentence each."""

    notes: tuple[str, ...] = ()
    """Remarks on the figures, one sentence each."""

    # What follows is not in documents.
    devices: Devices
    sizes: DatasetSizes
    missing: str | None
    """The text or the tokenizer that is not on this machine and was not prepared; None if none was looked for."""

    measurements: Measurements | None
    """The source of the times, if they were measured."""

    @property
    def runs(self) -> tuple[RunCost, ...]:
        """The ladder and its controls."""
        return self, *self.controls

    @property
    def device_memory_bytes(self) -> int | None:
        """Memory of one device; None if unknown."""
        return device_memory(self.schedule, self.devices)


def total_cost(costs: Sequence[PlannedCost]) -> PlannedCost:
    """The sum of `costs`, which must not be empty."""
    columns = {each.name: [getattr(cost, each.name) for cost in costs] for each in fields(PlannedCost)}
    sums: dict[str, Any] = {name: None if None in values else reduce(add, values) for name, values in columns.items()}
    return PlannedCost(**sums)


def run_cost(
    name: str,
    schedule: Schedule,
    devices: Devices,
    sizes: DatasetSizes,
    measurements: Measurements | None,
    earlier: list[Trained],
) -> dict[str, Any]:
    """The fields of a `RunCost` for a ladder or a control that trains on `devices`.

    With `measurements`, all times come from them; a size that they lack has no time. Takes over checkpoints of the runs
    `earlier`, and adds this one to them.
    """
    mixture, plans = list(mixture_parts(schedule, sizes.sources)), plan_run(schedule)
    reused = reused_steps(schedule, plans, earlier)
    earlier.append(Trained(schedule, plans, [[trunk_step(schedule, plan) or 0, plan.num_steps] for plan in plans]))
    evaluated = evaluation_tokens(schedule, sizes)
    stages = []
    for plan, taken in zip(plans, reused, strict=True):
        parts = tuple(part for part in mixture if part.stage == plan.name)
        epochs = epochs_after(plan, parts, sizes)
        stages.append(_stage_cost(schedule, plan, devices, parts, epochs, measurements, taken, evaluated))
    return {"name": name, "stages": tuple(stages), "total": total_cost(stages), "schedule": schedule}


def device_memory(schedule: Schedule, devices: Devices) -> int | None:
    """Memory of one device in bytes: from `launch.hardware`, else that of the GPUs here; None if unknown.

    Ignores a GPU that `launch.hardware` names if the devices are CPUs.
    """
    hardware = schedule.launch.hardware
    if hardware.device and devices.type == "cpu":
        return devices.memory_bytes
    return hardware.memory_bytes or devices.memory_bytes


def planned_micro_batch(schedule: Schedule, plan: StagePlan, num_devices: int, devices: Devices) -> int:
    """The micro-batch that a run uses on `num_devices`, which must divide the batch.

    This is `launch.micro_batch_size`. For auto it is the largest that fits if the device's memory is known (1 if none
    fits), else the device's whole share of the batch.
    """
    micro, _ = _micro_batches(schedule, plan, num_devices, devices)
    assert micro is not None
    return micro


def stage_memory(schedule: Schedule, plan: StagePlan, num_devices: int, devices: Devices) -> TrainingMemory:
    """The memory model of a stage on each of its devices."""
    return TrainingMemory(
        plan.model,
        zero_stage=schedule.launch.zero_stage,
        world_size=num_devices,
        precision=devices.precision(schedule.training.precision),
        sequence_length=plan.batch.sequence_length,
        offload=schedule.launch.offload,
        device=devices.type,
        recompute_every=schedule.launch.recompute_every,
        optimizer=schedule.optimizer.name,
        evaluation_length=schedule.evaluation_length,
    )


def trunk_step(schedule: Schedule, plan: StagePlan) -> int | None:
    """The step of the checkpoint right before the decay, which a stage keeps; None if it has none."""
    steps = plan.learning_rate.undecayed_steps
    is_kept = schedule.checkpoint.keep_trunk and not plan.branch_of
    return steps if is_kept and steps is not None and 0 < steps < plan.num_steps else None


def evaluation_tokens(schedule: Schedule, sizes: DatasetSizes) -> float | None:
    """The validation tokens of an evaluation; roughly, if the text is not prepared; None if nothing is known of it."""
    share = schedule.data.validation_fraction
    whole = sizes.validation_tokens or (sizes.training_tokens and sizes.training_tokens * share / (1 - share))
    sequences = schedule.evaluation.max_sequences
    return min(filter(None, (whole, sequences and sequences * schedule.evaluation_length)), default=None)


def stage_checkpoint_bytes(schedule: Schedule, plan: StagePlan, precision: Precision) -> int:
    """Disk space when a stage is done: `final/` and the checkpoints within the stage that are kept."""
    checkpoint = schedule.checkpoint
    saved = (plan.num_steps - 1) // checkpoint.every
    newest = min(checkpoint.keep, saved)
    kept = newest + ((saved - newest) // checkpoint.keep_every if checkpoint.keep_every else 0)
    kept += trunk_step(schedule, plan) is not None
    model, optimizer = plan.model, schedule.optimizer.name
    within = engine_checkpoint_bytes(model, optimizer, schedule.launch.zero_stage, precision)
    return parameters_checkpoint_bytes(model, optimizer) + kept * within


def _stage_cost(
    schedule: Schedule,
    plan: StagePlan,
    devices: Devices,
    mixture: tuple[MixturePart, ...],
    epochs: float | None,
    measurements: Measurements | None,
    reused: int,
    evaluated: float | None,
) -> StageCost:
    hardware, precision = schedule.launch.hardware, devices.precision(schedule.training.precision)
    peak_flops, price = hardware.peak_flops(precision), hardware.price_per_device_hour
    num_devices = schedule.launch.nodes_of(plan.index) * devices.per_machine
    micro, largest = _micro_batches(schedule, plan, num_devices, devices)
    batch_size, sequence_length = plan.batch
    measured = measurements.steps.get((plan.model, micro or 0, sequence_length)) if measurements else None
    trained_steps, seconds = plan.num_steps - reused, None
    trained = trained_steps / plan.num_steps
    evaluations = (plan.has_initial or plan.branch_of is not None) - (-plan.num_steps // schedule.evaluation.every)
    evaluation_flops = plan.evaluation_flops_per_token + (plan.own_evaluation_flops_per_token or 0.0)
    if measured and micro:
        seconds = trained_steps * measured.step_seconds(max(1, batch_size // (micro * num_devices)))
    elif measurements is None and peak_flops is not None and hardware.mfu is not None:
        # launch.hardware.mfu is what training achieves without recomputation, so recomputed FLOPs take time too.
        seconds = trained * (plan.flops.total + plan.recomputed_flops) / (num_devices * peak_flops * hardware.mfu)
    device_seconds = None if seconds is None else seconds * num_devices
    base_tokens = (schedule.base.tokens or 0) if schedule.base else 0
    same = ("name", "branch_of", "budget_tokens", "num_steps", "recomputed_flops")
    sizes = ("num_parameters", "num_embedding_parameters", "num_read_parameters")
    return StageCost(
        **{name: getattr(plan, name) for name in (*same, *sizes)},
        flops=plan.flops.total,
        flops_by_part=plan.flops,
        wall_seconds=seconds,
        device_seconds=device_seconds,
        money=None if device_seconds is None or price is None else device_seconds / 3600 * price,
        evaluation_flops=evaluated and trained * evaluations * evaluated * evaluation_flops,
        reused_flops=reused * plan.step_flops.total,
        checkpoint_bytes=stage_checkpoint_bytes(schedule, plan, precision),
        num_layers=plan.model.num_layers,
        batch_size=batch_size,
        sequence_length=sequence_length,
        learning_rate_scale=plan.learning_rate.scale,
        tokens_per_parameter=(base_tokens + plan.first_token + plan.budget_tokens) / plan.num_parameters,
        epochs=epochs,
        num_devices=num_devices,
        memory_bytes=stage_memory(schedule, plan, num_devices, devices).of(micro) if micro else None,
        micro_batch_size=micro,
        largest_micro_batch_size=largest,
        tokens_per_second=trained * plan.budget_tokens / seconds if seconds else None,
        mfu=trained * plan.flops.total / (device_seconds * peak_flops) if device_seconds and peak_flops else None,
        mixture=mixture,
        measured=measured,
        plan=plan,
    )


def _micro_batches(
    schedule: Schedule, plan: StagePlan, num_devices: int, devices: Devices
) -> tuple[int | None, int | None]:
    """(`micro_batch_size`, `largest_micro_batch_size`) as in `StageCost`."""
    batch_size, given = plan.batch.batch_size, schedule.launch.micro_batch_size
    share, capacity = max(1, batch_size // num_devices), device_memory(schedule, devices)
    largest = None
    if capacity is not None:
        memory, free = stage_memory(schedule, plan, num_devices, devices), (1 - HEADROOM) * capacity
        # Memory never falls with the micro-batch: bisect for the most that fit, then go down to a divisor of the share.
        most = bisect_right(range(1, share + 1), free, key=lambda size: memory.of(size).total)
        largest = next((size for size in range(most, 0, -1) if share % size == 0), 0)
    if batch_size % num_devices:
        return None, largest
    if given != "auto":
        return given, largest
    return (share if largest is None else largest or 1), largest
