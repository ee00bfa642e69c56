"""What `growctl plan --json` prints."""

from dataclasses import dataclass

from growctl.ladder.costs import MeasuredSteps, PlanCosts, RunCost, StageCost, Total, everything, plan_costs
from growctl.ladder.mixture_needs import MixturePart
from growctl.ladder.start_line import StartEntry, start_entry
from growctl.ladder.warnings import plan_notes, plan_warnings
from growctl.schedule.blocks import Schedule
from model.flops import Flops
from stages.engine.device_memory import Memory


@dataclass(frozen=True)
class MemoryEntry:
    """Bytes of one device at the peak of a stage, by part."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    temporary: int
    """What the peak needs in addition, such as buffers of the loss."""

    total: int

    @classmethod
    def of(cls, memory: Memory) -> "MemoryEntry":
        """The parts of `memory`, and their sum."""
        parts = (memory.parameters, memory.gradients, memory.optimizer, memory.activations, memory.temporary)
        return cls(*parts, total=memory.total)


@dataclass(frozen=True)
class MeasuredMemory:
    """Bytes that the allocator of a GPU handed out in a step."""

    lasting_bytes: int
    """Before the forward pass: parameters, gradients and optimizer."""

    activation_bytes: int
    """Added by the forward pass."""

    peak_bytes: int
    """The peak of the whole step."""


@dataclass(frozen=True)
class MeasuredEntry:
    """What --measure found."""

    micro_batch_seconds: float
    """Forward and backward pass of one micro-batch, except the last one of a step."""

    last_micro_batch_seconds: float
    """Forward and backward pass of a step's last micro-batch, with the gradient reduction and the update."""

    memory: MeasuredMemory | None
    """null on a CPU."""

    tokens_per_second: float | None
    """Data tokens per second, over all devices."""

    mfu: float | None
    """Share of the devices' peak FLOPs, between 0 and 1; null if the peak is not known."""

    @classmethod
    def of(cls, cost: StageCost, measured: MeasuredSteps) -> "MeasuredEntry":
        """The entry of what was measured for a stage."""
        memory = MeasuredMemory(**measured.memory) if measured.memory else None
        times = (measured.micro_batch_seconds, measured.last_micro_batch_seconds)
        return cls(*times, memory, cost.tokens_per_second, cost.mfu)


@dataclass(frozen=True)
class StageEntry:
    """A stage or a release, and what it will cost."""

    name: str
    branch_of: str | None
    """The stage that a release branches from; null for a stage of the ladder."""

    num_layers: int
    num_parameters: int
    num_embedding_parameters: int
    train_tokens: int
    num_steps: int
    batch_size: int
    """Sequences of an optimizer step, over all devices."""

    sequence_length: int
    """Its context, in data tokens."""

    learning_rate_scale: float
    """Factor on the learning rate for its batch (`learning_rate.batch_scaling`)."""

    epochs: float | None
    """Passes over the training data from the run's start to the stage's end; of a mixture, over the source that is read
    most often. null before the dataset is prepared."""

    token_share: float | None
    """Its share of the training tokens of all stages of its run; null for a release."""

    flops: float
    """Training FLOPs, forward and backward."""

    flops_share: float | None
    """Its share of the FLOPs of all stages of its run; null for a release."""

    flops_by_part: Flops
    recomputed_flops: float
    """FLOPs that activation checkpointing adds; `flops` does not contain them."""

    num_devices: int
    memory_bytes: MemoryEntry | None
    """null if the batch cannot be split evenly over the devices."""

    micro_batch_size: int | None
    """Sequences that a device computes at a time; null if the batch cannot be split evenly over the devices."""

    largest_micro_batch_size: int | None
    """The largest that fits into a device's memory, 0 if none fits; null if that memory is not known."""

    wall_seconds: float | None
    """Time of the optimizer steps alone; null if the devices' speed is not known."""

    device_seconds: float | None
    """Wall seconds x devices."""

    money: float | None
    """In the currency of launch.hardware.price_per_device_hour; null without it."""

    checkpoint_bytes: int
    """Disk space of its checkpoints when the stage is done."""

    mixture: tuple[MixturePart, ...]
    """What it reads of each source of a mixture; empty without one."""

    measured: MeasuredEntry | None
    """null without --measure, and for a size that could not be measured."""

    @classmethod
    def of(cls, cost: StageCost, run: RunCost) -> "StageEntry":
        """The entry of a stage of `run`."""
        plan = cost.plan
        shares = None if plan.branch_of else plan.shares_of([stage.plan for stage in run.stages])
        return cls(
            name=plan.name,
            branch_of=plan.branch_of,
            num_layers=plan.model.num_layers,
            num_parameters=plan.num_parameters,
            num_embedding_parameters=plan.num_embedding_parameters,
            train_tokens=plan.train_tokens,
            num_steps=plan.num_steps,
            batch_size=plan.batch.batch_size,
            sequence_length=plan.batch.sequence_length,
            learning_rate_scale=plan.learning_rate.scale,
            epochs=cost.epochs,
            token_share=shares and shares[0],
            flops=plan.flops.total,
            flops_share=shares and shares[1],
            flops_by_part=plan.flops,
            recomputed_flops=plan.recomputed_flops,
            num_devices=cost.num_devices,
            memory_bytes=MemoryEntry.of(cost.memory) if cost.memory else None,
            micro_batch_size=cost.micro_batch_size,
            largest_micro_batch_size=cost.largest_micro_batch_size,
            wall_seconds=cost.seconds,
            device_seconds=_seconds(cost.device_hours),
            money=cost.money,
            checkpoint_bytes=cost.checkpoint_bytes,
            mixture=tuple(part for part in run.mixture if part.stage == plan.name),
            measured=MeasuredEntry.of(cost, cost.measured) if cost.measured else None,
        )


@dataclass(frozen=True)
class TotalEntry:
    """Sums over stages and releases. A sum is null if one of its terms is unknown."""

    train_tokens: int
    flops: float
    """Training FLOPs, forward and backward."""

    flops_by_part: Flops
    recomputed_flops: float
    """FLOPs that activation checkpointing adds; `flops` does not contain them."""

    wall_seconds: float | None
    device_seconds: float | None
    """Wall seconds x devices."""

    money: float | None
    checkpoint_bytes: int

    @classmethod
    def of(cls, total: Total) -> "TotalEntry":
        """The entry of a sum."""
        return cls(
            train_tokens=total.train_tokens,
            flops=total.flops.total,
            flops_by_part=total.flops,
            recomputed_flops=total.recomputed_flops,
            wall_seconds=total.seconds,
            device_seconds=_seconds(total.device_hours),
            money=total.money,
            checkpoint_bytes=total.checkpoint_bytes,
        )


@dataclass(frozen=True)
class ControlEntry:
    """A control, and what it will cost."""

    name: str
    kind: str
    stages: tuple[StageEntry, ...]
    total: TotalEntry

    @classmethod
    def of(cls, control: RunCost) -> "ControlEntry":
        """The entry of a control."""
        stages = tuple(StageEntry.of(cost, control) for cost in control.parts)
        return cls(control.name, control.kind or "", stages, TotalEntry.of(control.total))


@dataclass(frozen=True)
class PlanDocument:
    """What a schedule will cost. Unknown values are null."""

    name: str | None
    """The schedule's name."""

    start: StartEntry | None
    """The checkpoint that the ladder starts from; null for a new model."""

    stages: tuple[StageEntry, ...]
    """The stages of the ladder. A stage's release follows it."""

    controls: tuple[ControlEntry, ...]
    total: TotalEntry
    """The ladder alone."""

    total_with_controls: TotalEntry
    warnings: tuple[str, ...]
    """Problems of the plan, one sentence each."""

    notes: tuple[str, ...]
    """Remarks on the figures, one sentence each."""


def plan_document(schedule: Schedule, costs: PlanCosts | None = None) -> PlanDocument:
    """The plan of `schedule` for scripts."""
    costs = costs or plan_costs(schedule)
    return PlanDocument(
        name=schedule.name,
        start=start_entry(schedule),
        stages=tuple(StageEntry.of(cost, costs.ladder) for cost in costs.ladder.parts),
        controls=tuple(map(ControlEntry.of, costs.controls)),
        total=TotalEntry.of(costs.ladder.total),
        total_with_controls=TotalEntry.of(everything(costs)),
        warnings=tuple(plan_warnings(costs)),
        notes=tuple(plan_notes(costs)),
    )


def _seconds(hours: float | None) -> float | None:
    return None if hours is None else hours * 3600
