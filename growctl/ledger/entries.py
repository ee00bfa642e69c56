"""What the ledger holds, as values: runs, stages, costs, evaluations, anomalies."""

from dataclasses import dataclass, field, fields
from typing import Any
from uuid import uuid4

from model.flops import Flops


@dataclass(frozen=True)
class RunEntry:
    """What a run is."""

    name: str
    schedule: str
    """Path or shipped name, as the user gave it."""
    control: str | None
    """Kind of control (`tokenformer-scratch`, ...); None for a ladder."""
    control_of: str | None
    """The run name of the ladder that a control is compared with; None for a ladder."""
    seed: int
    dataset: str
    """Path of the prepared dataset."""
    dataset_fingerprint: str
    conditions: dict[str, Any] = field(default_factory=dict)
    """What a run must share with another to be compared with it: values by dotted path, as JSON holds them."""
    ladder_id: str | None = None
    """The `run_id` of the ladder when the control was started; None for a ladder."""
    decays: bool = True
    """Whether the learning rate comes down at the end of the run."""
    caveats: list[str] = field(default_factory=list)
    """What a reader of a comparison with this control should know, each to be read behind its name."""
    run_id: str = field(default_factory=lambda: uuid4().hex)
    """What tells this run from every other, also from one of its name; a copy has the same."""


@dataclass(frozen=True)
class StageEntry:
    """What a stage is planned to be, and what a step of it costs."""

    name: str
    num_parameters: int
    num_embedding_parameters: int
    train_tokens: int
    """The budget: data tokens to train in this stage."""
    num_steps: int
    tokens_per_step: int
    step_flops: Flops
    """Training FLOPs of one optimizer step, forward and backward, by part."""
    evaluation_flops_per_token: float
    """FLOPs of a forward pass, per validation token."""


@dataclass(frozen=True)
class Cost:
    """What some work took. Adds."""

    steps: int = 0
    tokens: int = 0
    flops: Flops = field(default=Flops(0.0, 0.0, 0.0))
    """Training FLOPs, by part."""
    evaluation_flops: float = 0.0
    """FLOPs of evaluations, which are not part of `flops`."""
    wall_seconds: float = 0.0
    device_seconds: float = 0.0
    """Wall seconds x devices."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def share(self, fraction: float) -> "Cost":
        """The part of this cost that belongs to `fraction` of its steps."""
        return Cost(
            round(self.steps * fraction),
            round(self.tokens * fraction),
            self.flops * fraction,
            *(value * fraction for value in (self.evaluation_flops, self.wall_seconds, self.device_seconds)),
        )


@dataclass(frozen=True)
class SplitCost:
    """Cost, with what was done in vain shown apart. Adds."""

    kept: Cost = Cost()
    replayed: Cost = Cost()
    """Steps that a later attempt did again, and the time of attempts that came to no step."""

    @property
    def total(self) -> Cost:
        """Everything that was spent: kept and replayed."""
        return self.kept + self.replayed

    def __add__(self, other: "SplitCost") -> "SplitCost":
        return SplitCost(self.kept + other.kept, self.replayed + other.replayed)


@dataclass(frozen=True)
class Evaluation:
    """One evaluation that still stands (no later attempt resumed from before it)."""

    step: int
    point: str
    """`interval`, `after_growth` or `final`."""
    loss: float | None
    """Nats a token; None where it was not a number."""
    perplexity: float | None
    bits_per_byte: float | None
    num_tokens: int
    precision: str
    flops: float
    """Training FLOPs that the stage had spent when this was measured, replayed work included."""


@dataclass(frozen=True)
class Anomaly:
    """Numbers that went wrong, and what was done about it."""

    attempt: int
    step: int
    seconds: float
    """Since the attempt was launched."""
    kind: str
    """`non_finite` or `spike`."""
    value: float | None
    """What was measured; None where it was no number."""
    threshold: float | None
    """What it was held against."""
    action: str
    """`skip`, `rollback` or `stop`."""
    first_step: int | None
    """The first step whose data was left out, None where none was."""
    num_steps: int | None
    """Steps whose data was left out."""
