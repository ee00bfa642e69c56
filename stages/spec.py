"""What a worker is told: one stage's training, written out in full as JSON. No torch here."""

import math
from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from model.config import ModelConfig


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class LearningRate(_Frozen):
    """A learning rate for every step of a span, of which a stage is the whole or a part."""

    shape: Literal["wsd", "cosine"]
    """`wsd`: warm-up, stable, linear decay. `cosine`: warm-up, then half a cosine."""

    peak: PositiveFloat
    final: NonNegativeFloat
    """The rate at the end of the span."""

    warmup_steps: NonNegativeInt
    decay_steps: NonNegativeInt
    """Steps of the linear decay at the end of the span (`wsd` only)."""

    total_steps: PositiveInt
    """Length of the span."""

    first_step: NonNegativeInt
    """The stage's first step within the span."""

    def at(self, step: int) -> float:
        """The rate for the stage's update number `step`, counted from 0."""
        position = self.first_step + step
        if position < self.warmup_steps:
            return self.peak * (position + 1) / self.warmup_steps
        if self.shape == "cosine":
            progress = (position - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
            return self.final + (self.peak - self.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        left = self.total_steps - position
        return self.final + (self.peak - self.final) * min(1.0, max(0, left) / max(1, self.decay_steps))


class Optimizer(_Frozen):
    """AdamW. Weight decay acts on matrices only."""

    betas: tuple[float, float]
    epsilon: PositiveFloat
    weight_decay: NonNegativeFloat
    gradient_clipping: NonNegativeFloat
    """Largest global gradient norm; 0: no clipping."""


class TrainSpec(_Frozen):
    """One attempt at one stage."""

    stage: str
    attempt: PositiveInt
    directory: str
    """The stage's directory: metrics.jsonl, step_*/ and final/ are written there."""

    dataset: str
    """A prepared dataset's directory."""

    model: ModelConfig
    """The model at the stage's start."""

    initial: str | None
    """The grown `parameters` checkpoint that the stage starts from; null: the initialisation drawn from `seed`."""

    resume: str | None
    """The `engine` checkpoint within the stage to go on from; null: the stage's start."""

    seed: NonNegativeInt
    samples_seen: NonNegativeInt
    """Training sequences that earlier stages consumed."""

    num_steps: PositiveInt
    batch_size: PositiveInt
    """Sequences an optimizer step, over all ranks."""

    micro_batch_size: PositiveInt
    """Sequences a forward pass, on one rank."""

    sequence_length: PositiveInt
    learning_rate: LearningRate
    optimizer: Optimizer
    ramp_steps: NonNegativeInt
    """Steps over which new keys rise from 0 to 1."""

    zero_stage: Literal[1, 2, 3]
    precision: Literal["auto", "bf16", "fp32"]
    log_every: PositiveInt
    evaluate_every: PositiveInt
    checkpoint_every: PositiveInt
    keep_checkpoints: PositiveInt
    """Newest checkpoints within the stage that are kept."""

    evaluation_sequences: PositiveInt | None
    """Validation sequences an evaluation reads; null: all of them."""

    launched_at: float = Field(description="Unix time at which the runner launched this attempt, in seconds.")
