"""Estimates memory, time, money and disk for every stage of a schedule and its controls.

What is unknown is None.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from growctl.ladder.controls import plan_controls
from growctl.ladder.datasets import DatasetSizes, prepared_sizes
from growctl.ladder.mixture_needs import MixturePart, exhausted, known_sizes, mixture_parts
from growctl.ladder.releases import plan_run
from growctl.ladder.stage_plans import StagePlan, total_flops
from growctl.launch.devices import Devices
from growctl.launch.resolve import planned_devices
from growctl.schedule.batches import evaluation_length
from growctl.schedule.blocks import Schedule
from growctl.schedule.sources import missing_source_text
from model.config import TokenformerConfig, TransformerConfig
from model.flops import Flops
from model.precision import Precision
from stages.engine.device_memory import Memory, TrainingMemory, engine_checkpoint_bytes, parameters_checkpoint_bytes
from stages.engine.muon_memory import muon_elements

HEADROOM = 0.1
"""Share of a device's memory that the plan leaves free for the CUDA context, NCCL's buffers and fragmentation."""

MeasuredSize = tuple[TokenformerConfig | TransformerConfig, int, int]
"""A model, its micro-batch size and its context. `plan --measure` times each once."""


@dataclass(frozen=True)
class MeasuredSteps:
    """Times and memory that `plan --measure` found for one size on this machine."""

    micro_batch_seconds: float
    """Forward and backward pass of one micro-batch, except the last one of a step."""

    last_micro_batch_seconds: float
    """Forward and backward pass of a step's last micro-batch, with the gradient reduction and the update."""

    memory: Mapping[str, int] | None
    """Bytes that the device's allocator handed out (`stages.probe.measured_steps.StepMemory`); None on a CPU."""

    def step_seconds(self, num_micro_batches: int) -> float:
        """Seconds of an optimizer step with `num_micro_batches`."""
        return (num_micro_batches - 1) * self.micro_batch_seconds + self.last_micro_batch_seconds


@dataclass(frozen=True)
class Measurements:
    """All results of `plan --measure`."""

    where: str
    """The devices that ran the measurement."""

    num_devices: int
    steps: Mapping[MeasuredSize, MeasuredSteps]
    failures: tuple[str, ...] = ()
    """One sentence per size that could not be measured, with the reason."""


@dataclass(frozen=True)
class StageCost:
    """The costs of one stage on its planned devices."""

    plan: StagePlan
    num_devices: int
    micro_batch_size: int | None
    """The micro-batch that a run would use; None if the batch cannot be split evenly over the devices."""

    largest_micro_batch_size: int | None
    """The largest that fits into a device's memory, 0 if none fits; None if that memory is unknown."""

    memory: Memory | None
    """Memory of one device with `micro_batch_size`; None without one."""

    epochs: float | None
    """Passes over the training data from the run's start to the stage's end; of a mixture, over the source that is read
    most often."""

    seconds: float | None
    """Seconds of the stage's optimizer steps alone."""

    peak_flops: float | None
    """Peak FLOPs per second of one device, in the training precision."""

    price_per_device_hour: float | None
    checkpoint_bytes: int
    """Disk space when the stage is done: `final/` and the checkpoints within the stage that are kept."""

    measured: MeasuredSteps | None = None

    @property
    def device_hours(self) -> float | None:
        """Hours multiplied by the number of devices."""
        return None if self.seconds is None else self.seconds * self.num_devices / 3600

    @property
    def money(self) -> float | None:
        """The price, in the currency of `launch.hardware.price_per_device_hour`."""
        if self.device_hours is None or self.price_per_device_hour is None:
            return None
        return self.device_hours * self.price_per_device_hour

    @property
    def tokens_per_second(self) -> float | None:
        """Training tokens per second, over all devices."""
        return self.plan.train_tokens / self.seconds if self.seconds else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: the share of the devices' peak FLOPs that `seconds` implies."""
        if not self.seconds or self.peak_flops is None:
            return None
        return self.plan.flops.total / (self.seconds * self.num_devices * self.peak_flops)


@dataclass(frozen=True)
class Total:
    """Sums over stages. A sum is None if one of its terms is unknown."""

    train_tokens: int
    flops: Flops
    recomputed_flops: float
    seconds: float | None
    device_hours: float | None
    money: float | None
    checkpoint_bytes: int

    @classmethod
    def of(cls, stages: Iterable[StageCost]) -> "Total":
        """Sums the costs of `stages`."""
        costs = list(stages)
        return cls(
            train_tokens=sum(cost.plan.train_tokens for cost in costs),
            flops=total_flops([cost.plan for cost in costs]),
            recomputed_flops=sum(cost.plan.recomputed_flops for cost in costs),
            seconds=_sum(cost.seconds for cost in costs),
            device_hours=_sum(cost.device_hours for cost in costs),
            money=_sum(cost.money for cost in costs),
            checkpoint_bytes=sum(cost.checkpoint_bytes for cost in costs),
        )


@dataclass(frozen=True)
class RunCost:
    """The costs of a ladder or a control."""

    name: str
    kind: str | None
    """The kind of a control; None for the ladder."""

    schedule: Schedule
    parts: list[StageCost]
    """All stages, each followed by its release if it has one."""

    mixture: tuple[MixturePart, ...] = ()
    """What each of them reads of each source of a mixture."""

    used_up: str | None = None
    """Why the sources of a mixture do not last, as far as their sizes are known; None if they do."""

    @cached_property
    def stages(self) -> list[StageCost]:
        """The stages without the releases."""
        return [cost for cost in self.parts if cost.plan.branch_of is None]

    @cached_property
    def total(self) -> Total:
        """The sums over all stages and releases."""
        return Total.of(self.parts)


@dataclass(frozen=True)
class PlanCosts:
    """The costs of a schedule: its ladder and its controls."""

    ladder: RunCost
    controls: list[RunCost]
    devices: Devices
    precision: Precision
    memory_bytes: int | None
    """Memory of one device; None if unknown."""

    training_tokens: int | None
    """Training tokens in the dataset; None if unknown."""

    dataset: DatasetSizes | None = None
    """The sizes of the prepared dataset; None without one."""

    missing: str | None = None
    """Why the text or the tokenizer is not on this machine; None if it is there, not local, or not looked for."""

    measurements: Measurements | None = None
    """The source of the times, if they were measured."""

    runs: list[RunCost] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", [self.ladder, *self.controls])


def everything(costs: PlanCosts) -> Total:
    """The sums over the ladder and all controls."""
    return Total.of(cost for run in costs.runs for cost in run.parts)


def plan_costs(schedule: Schedule, runs_dir: Path | None = None, measurements: Measurements | None = None) -> PlanCosts:
    """Computes the costs of the ladder of `schedule` and of its controls.

    Looks for the text, and in `runs_dir` for its prepared dataset; without `runs_dir` it looks at no files. With
    `measurements`, all times come from them; a size that they lack has no time.
    """
    dataset = prepared_sizes(schedule.data, runs_dir)
    tokens = dataset.training_tokens if dataset else schedule.data.approximate_tokens
    sizes, _ = known_sizes(schedule.data, runs_dir)
    devices = planned_devices(schedule)

    def run_cost(name: str, kind: str | None, planned: Schedule) -> RunCost:
        mixture = tuple(mixture_parts(planned, sizes))
        parts = list(_stage_costs(planned, devices, partial(_epochs, tokens, mixture), measurements))
        return RunCost(name, kind, planned, parts, mixture, exhausted(planned, sizes))

    return PlanCosts(
        ladder=run_cost(schedule.name or "", None, schedule),
        controls=[run_cost(control.name, control.kind, control.schedule) for control in plan_controls(schedule)],
        devices=devices,
        precision=devices.precision(schedule.training.precision),
        memory_bytes=device_memory(schedule, devices),
        training_tokens=tokens,
        dataset=dataset,
        missing=missing_source_text(schedule.data) if runs_dir else None,
        measurements=measurements,
    )


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
    memory = stage_memory(schedule, plan, num_devices, devices)
    micro, _ = _micro_batches(schedule, plan, num_devices, memory, device_memory(schedule, devices))
    assert micro is not None
    return micro


def _largest(memory: TrainingMemory, share: int, device_memory_bytes: int) -> int | None:
    """The largest divisor of `share` that leaves `HEADROOM` free; None if not even one sequence does."""
    free = (1 - HEADROOM) * device_memory_bytes
    # Memory never falls with the micro-batch, so bisect for the most that fit, then go down to a divisor of the share.
    most = bisect_right(range(1, share + 1), free, key=lambda size: memory.of(size).total)
    return next((size for size in range(most, 0, -1) if share % size == 0), None)


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
        evaluation_length=evaluation_length(schedule),
    )


def stage_devices(schedule: Schedule, index: int, per_machine: int) -> int:
    """Devices of a stage, summed over its machines."""
    return schedule.launch.nodes_of(index) * per_machine


def _stage_costs(
    schedule: Schedule,
    devices: Devices,
    epochs: Callable[[StagePlan], float | None],
    measurements: Measurements | None,
) -> Iterable[StageCost]:
    hardware, precision = schedule.launch.hardware, devices.precision(schedule.training.precision)
    peak_flops = hardware.peak_flops(precision)
    for plan in plan_run(schedule):
        num_devices = stage_devices(schedule, plan.index, devices.per_machine)
        memory = stage_memory(schedule, plan, num_devices, devices)
        micro, largest = _micro_batches(schedule, plan, num_devices, memory, device_memory(schedule, devices))
        size = (plan.model, micro or 0, plan.batch.sequence_length)
        measured = measurements.steps.get(size) if measurements and micro else None
        yield StageCost(
            plan=plan,
            num_devices=num_devices,
            micro_batch_size=micro,
            largest_micro_batch_size=largest,
            memory=memory.of(micro) if micro else None,
            epochs=epochs(plan),
            seconds=_seconds(schedule, plan, num_devices, micro, measured, None if measurements else peak_flops),
            peak_flops=peak_flops,
            price_per_device_hour=hardware.price_per_device_hour,
            checkpoint_bytes=stage_checkpoint_bytes(schedule, plan, precision),
            measured=measured,
        )


def _epochs(dataset_tokens: int | None, mixture: Sequence[MixturePart], plan: StagePlan) -> float | None:
    """As `StageCost.epochs`, for a dataset or else for what the run reads of a `mixture`."""
    if mixture:
        known = [part.epochs for part in mixture if part.stage == plan.name]
        return max((epochs for epochs in known if epochs is not None), default=None) if None not in known else None
    seen = plan.first_token + plan.train_tokens
    return seen / dataset_tokens if dataset_tokens else None


def _micro_batches(
    schedule: Schedule, plan: StagePlan, num_devices: int, memory: TrainingMemory, memory_bytes: int | None
) -> tuple[int | None, int | None]:
    """(`micro_batch_size`, `largest_micro_batch_size`) as in `StageCost`."""
    batch_size, given = plan.batch.batch_size, schedule.launch.micro_batch_size
    share = max(1, batch_size // num_devices)
    largest = None if memory_bytes is None else _largest(memory, share, memory_bytes) or 0
    if batch_size % num_devices:
        return None, largest
    if given != "auto":
        return given, largest
    return (share if largest is None else largest or 1), largest


def _seconds(
    schedule: Schedule,
    plan: StagePlan,
    num_devices: int,
    micro_batch_size: int | None,
    measured: MeasuredSteps | None,
    peak_flops: float | None,
) -> float | None:
    """Seconds of the stage's optimizer steps: from the measurement, else from peak FLOPs and MFU; None if unknown.

    `launch.hardware.mfu` is what training achieves without recomputation, so recomputed FLOPs take their time too.
    """
    mfu, batch_size = schedule.launch.hardware.mfu, plan.batch.batch_size
    if measured and micro_batch_size:
        num_micro_batches = max(1, batch_size // (micro_batch_size * num_devices))
        return plan.num_steps * measured.step_seconds(num_micro_batches)
    if peak_flops is None or mfu is None:
        return None
    return (plan.flops.total + plan.recomputed_flops) / (num_devices * peak_flops * mfu)


def stage_checkpoint_bytes(schedule: Schedule, plan: StagePlan, precision: Precision) -> int:
    """Disk space when a stage is done: `final/` and the checkpoints within the stage that are kept."""
    checkpoint = schedule.checkpoint
    saved = (plan.num_steps - 1) // checkpoint.every
    newest = min(checkpoint.keep, saved)
    kept = newest + ((saved - newest) // checkpoint.keep_every if checkpoint.keep_every else 0)
    undecayed = None if plan.branch_of else plan.learning_rate.undecayed_steps
    if checkpoint.keep_trunk and undecayed is not None and 0 < undecayed < plan.num_steps:
        kept += 1
    muon = muon_elements(plan.model, schedule.optimizer.name)
    within = engine_checkpoint_bytes(plan.num_parameters, schedule.launch.zero_stage, precision, muon)
    return parameters_checkpoint_bytes(plan.num_parameters, muon) + kept * within


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = list(values)
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None
