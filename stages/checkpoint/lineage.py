"""Where a checkpoint comes from: its history, which determines its weights, and what it cost. No torch here.

A history is a chain of entries, oldest first. Each entry names an operation and everything that determines what it did
to the weights; its hash covers both and the hash of the entry before. Two checkpoints with the same last hash were made
in the same way from the beginning, on whatever machine, so one can stand in for the other. The number of ranks, the
ZeRO stage, offloading and the micro-batch are not part of it: they change only the rounding.
"""

import hashlib
import json
import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, NonNegativeFloat

from model.depth import Depth
from model.flops import Flops
from model.policy import GrowthPolicy, Moments
from model.strict import Strict
from stages.metrics_lines import SourceEvaluation
from stages.spec import EvaluationPlan

Operation = Literal["init", "train", "expand", "shrink", "import"]
"""What made a checkpoint. `init` draws a new model; it appears only in histories."""

Making = Literal["train", "expand", "shrink", "import"]


Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""A number of things. It fits into a float, whatever a manifest claims."""


class TrainingCost(Strict):
    """The cost of training a checkpoint, from the first step of its first ancestor on.

    Repeated work is not included, and neither are other branches.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    steps: Count = 0
    tokens: Count = 0
    """Data tokens."""

    flops: Flops = Flops(0.0, 0.0, 0.0)
    """Training FLOPs, by part."""

    device_seconds: NonNegativeFloat = 0.0
    """Wall seconds x devices."""

    complete: bool = True
    """False if an imported ancestor has a cost that is not known and not included."""

    def plus(self, steps: int, tokens: int, flops: Flops, device_seconds: float) -> "TrainingCost":
        """This cost and that of further training."""
        return TrainingCost(
            steps=self.steps + steps,
            tokens=self.tokens + tokens,
            flops=self.flops + flops,
            device_seconds=round(self.device_seconds + device_seconds, 3),
            complete=self.complete,
        )


class HistoryEntry(Strict):
    """One operation in the history of a checkpoint."""

    operation: Operation
    determined_by: dict[str, Any]
    """Everything that determines the operation's effect on the weights, as JSON values."""

    hash: str
    """sha256 over the hash of the entry before, the operation and `determined_by`."""

    num_parameters: Annotated[Count, Field(gt=0)]
    """Number of parameters after the operation."""

    cost: TrainingCost
    """The cost up to here."""

    made_in: str | None = None
    """The run and the stage that did it, for people; None outside a run."""


History = tuple[HistoryEntry, ...]


def extended(
    history: History,
    operation: Operation,
    determined_by: dict[str, Any],
    *,
    num_parameters: int,
    cost: TrainingCost | None = None,
    made_in: str | None = None,
) -> History:
    """`history` with one more entry. `cost` is by default that of the last entry."""
    entry = HistoryEntry(
        operation=operation,
        determined_by=determined_by,
        hash=next_hash(history, operation, determined_by),
        num_parameters=num_parameters,
        cost=cost or (history[-1].cost if history else TrainingCost()),
        made_in=made_in,
    )
    return *history, entry


def next_hash(history: History, operation: Operation, determined_by: dict[str, Any]) -> str:
    """The hash of the entry that would follow `history`."""
    return hash_of([history[-1].hash if history else "", operation, determined_by])


def hash_of(value: Any) -> str:
    """sha256 of a value's JSON, for `determined_by`."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def recipe_of(history: History) -> str:
    """sha256 of a history without its seeds: equal for checkpoints that were made alike with different seeds."""
    return hash_of([(each.operation, each.determined_by | {"seed": None}) for each in history])


Loss = Annotated[float, BeforeValidator(lambda loss: math.nan if loss is None else loss)]
"""JSON stores NaN as null."""


Losses = list[tuple[int, Loss]]
"""(step, validation loss in nats per token) pairs, oldest first."""


class TrainingRecord(Strict):
    """What a checkpoint of a stage holds besides tensors, for training that continues from it."""

    stage: str = ""
    losses: Losses = []
    """At the context of the ladder's last stage, so that the losses of all stages compare."""

    own_context_losses: Losses = []
    """At the stage's own context; empty if that is the same."""

    pending: list[list[Loss]] | None = None
    """By rank: the losses of the updates since the last log line."""

    guard: dict[str, Any] | None = None
    """The state of stages.train.anomaly_guard.Guard."""

    left_out: list[tuple[int, int]] = []
    """(first step, number of steps) of data that rollbacks skipped."""

    evaluations: EvaluationPlan | None = None
    validation_loss: Loss | None = None
    """Of a finished stage, measured in float32; nats per token."""

    validation_tokens: Count | None = None
    own_context_loss: float | None = None
    by_source: dict[str, SourceEvaluation] | None = None
    """Of a finished stage on a mixture, by the source's name."""

    @property
    def trigger_losses(self) -> Losses:
        """At the context that the stage trains, which its trigger follows."""
        return self.own_context_losses or self.losses

    @property
    def is_finished(self) -> bool:
        """Whether the stage's final evaluation is in it."""
        return self.validation_tokens is not None

    @property
    def last_loss(self) -> float | None:
        """The loss measured when the stage finished, else the last one before; None if there is none."""
        losses = [*(loss for _, loss in self.losses[-1:]), self.validation_loss]
        return next((loss for loss in reversed(losses) if loss is not None and math.isfinite(loss)), None)


class GrowthRecord(Strict):
    """How a checkpoint was grown."""

    attention_tokens: int | list[int] = 0
    """Parameter tokens that each of Q, K, V and O gained: one number if all layers gained as many, else one for each
    layer."""

    ffn_tokens: int | list[int] = 0
    """The same for the FFN, or its units in a decoder."""

    heads: int = 0
    """Query heads that each layer of a decoder gained."""

    new_layers: int = 0
    new_layer_positions: list[int] = []
    """Counted from 0 in the order of the forward pass."""

    widen: int = 1
    """The factor on a decoder's width."""

    policy: GrowthPolicy | None = None
    """None for a decoder."""

    depth: Depth | None = None
    """Where a decoder's new layers went; None if it has none."""

    copy_noise: float = 0.0
    """On a widened decoder's weights, relative to their root mean square."""

    moments: Moments | None = None
    """Whether a decoder's old parameters kept their moments; None for a Tokenformer, whose policy says it."""

    preserves: bool
    """Whether the growth claims to preserve the function."""

    seed: int


class ImportRecord(Strict):
    """The weights that an imported checkpoint was made from."""

    layout: str
    weights: str | None = None
    """The name of the file, or of the model on the Hugging Face Hub."""

    check: str | None = None
    """How the logits compare with those of the program that the model comes from; None if there is no comparison."""


class Lineage(Strict):
    """Where a checkpoint comes from."""

    operation: Making
    parent: str | None = None
    """sha256 of the parent's manifest.json; null for a model trained from scratch."""

    training: TrainingRecord | None = None
    """Of `train`."""

    growth: GrowthRecord | None = None
    """Of `expand`."""

    imported: ImportRecord | None = None
    """Of `import`."""

    history: History = ()
    """Every operation since the model was drawn or imported; empty if it is not known."""

    @property
    def cost(self) -> TrainingCost | None:
        """The cost of the checkpoint; None if its history is not known."""
        return self.history[-1].cost if self.history else None
