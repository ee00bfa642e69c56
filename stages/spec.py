"""What a worker is told: one stage's training, written out in full as JSON. No torch here."""

import math
import statistics
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from model.config import Kernels, ModelConfig
from model.precision import RequestedPrecision
from model.strict import Strict

RateShape = Literal["wsd", "cosine"]
ZeroStage = Literal[1, 2, 3]
Offload = Literal["none", "optimizer"]
Action = Literal["skip", "rollback", "stop"]
"""What follows an update that was refused."""


class LearningRate(Strict):
    """A learning rate for every step of a span, of which a stage is the whole or a part."""

    shape: RateShape
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


class GenerationRule(Strict):
    """How one generation's parameters learn in a stage, as factors on the stage's learning rate.

    The embedding and the final norm are of generation 0.
    """

    lr_scale: NonNegativeFloat = 1.0
    weight_decay: NonNegativeFloat | None = None
    """null: the optimizer's."""

    frozen_steps: NonNegativeInt = 0
    """Steps at the stage's start with a learning rate of 0, and so without decay."""

    warmup_steps: NonNegativeInt = 0
    """Steps over which the factor rises from 0, from the stage's start or the end of the freeze."""

    def factor(self, step: int) -> float:
        """What the learning rate of the stage's update number `step`, counted from 0, is multiplied by."""
        position = step - self.frozen_steps
        if position < 0:
            return 0.0
        return self.lr_scale * min(1.0, (position + 1) / (self.warmup_steps + 1))


def settled_step(
    num_steps: int,
    learning_rate: LearningRate,
    ramp_steps: int,
    anneal_steps: int | None,
    generations: Sequence[GenerationRule],
) -> int:
    """The step of a stage before which its loss is no measure: learning rates, ramps or tau still move.

    A generation that is frozen for the whole stage does not delay it.
    """
    warmup_steps = learning_rate.warmup_steps - learning_rate.first_step
    resting = [rule.warmup_steps + rule.frozen_steps for rule in generations if rule.frozen_steps < num_steps]
    return max(0, warmup_steps, ramp_steps, anneal_steps or 0, *resting)


class SlopeTrigger(Strict):
    """Ends a stage before its budget is spent, once its validation loss falls too slowly for what it costs."""

    slope: PositiveFloat
    """Nats per training FLOP: the stage ends when the smoothed loss falls by less."""

    window: Annotated[int, Field(ge=2)]
    """Evaluations over which the slope is fitted; the stage has at least as many."""

    step_flops: PositiveFloat
    """Training FLOPs of an optimizer step."""

    def fitted(self, losses: Sequence[tuple[int, float]], settled_step: int = 0) -> float | None:
        """The fall of the loss, nats per FLOP: a least-squares line through the last `window` (step, loss).

        Losses before `settled_step` do not count. None as long as there are fewer, or one of them is not a number.
        """
        counted = [(step, loss) for step, loss in losses if step >= settled_step][-self.window :]
        if len(counted) < self.window or not all(math.isfinite(loss) for _, loss in counted):
            return None
        steps, values = zip(*counted, strict=True)
        return -statistics.linear_regression(steps, values).slope / self.step_flops


class Optimizer(Strict):
    """AdamW. Weight decay acts on matrices only."""

    betas: tuple[float, float]
    epsilon: PositiveFloat
    weight_decay: NonNegativeFloat
    gradient_clipping: NonNegativeFloat
    """Largest global gradient norm; 0: no clipping."""


class Anomalies(Strict):
    """What follows an update that was refused: one whose gradient is not finite, or whose loss is a spike."""

    non_finite: Action = "skip"
    spikes: Literal["ignore", Action] = "ignore"
    spike_z: PositiveFloat = 10.0
    """Robust standard deviations above the median from which on a step's loss is a spike."""

    window: Annotated[int, Field(ge=8)] = 64
    """Steps' losses that median and deviation are taken over; until there are as many no step is a spike."""

    most: PositiveInt = 10
    """Updates refused in a row, or rollbacks to the same checkpoint, after which one more stops the stage."""


class TrainSpec(Strict):
    """One attempt at one stage."""

    stage: str
    attempt: PositiveInt
    directory: str
    """The stage's directory: metrics.jsonl, step_*/ and final/ are written there."""

    keys: str
    """The file of keys that sign engine checkpoints and tell which may be loaded (stages/checkpoint/signatures.py)."""

    dataset: str
    """A prepared dataset's directory."""

    model: ModelConfig
    """The model at the stage's start."""

    initial: str | None
    """The grown `parameters` checkpoint that the stage starts from; null: the initialisation drawn from `seed`."""

    resume: str | None
    """The checkpoint within the stage to go on from: an `engine` one, or what was converted of one. null: the stage's
    start."""

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
    generations: tuple[GenerationRule, ...] = ()
    """How each generation learns, by its number; those behind the end learn as the stage does."""

    ramp_steps: NonNegativeInt
    """Steps over which new keys rise from 0 to 1, where they entered at 0."""

    anneal_steps: NonNegativeInt | None = None
    """Steps over which every tau moves to the published formula; null: it stays."""

    trigger: SlopeTrigger | None = None
    """What may end the stage before `num_steps`."""

    anomalies: Anomalies = Anomalies()
    left_out: tuple[tuple[NonNegativeInt, PositiveInt], ...] = ()
    """Data that rollbacks left out, as stages/train/skipped_data.py has it."""

    zero_stage: ZeroStage
    offload: Offload = "none"
    """optimizer: master weights and Adam's moments live, and are updated, in the host's memory."""

    precision: RequestedPrecision
    kernels: Kernels = "eager"
    """How the model is computed (model/config.py)."""

    log_every: PositiveInt
    evaluate_every: PositiveInt
    checkpoint_every: PositiveInt
    keep_checkpoints: PositiveInt
    """Newest checkpoints within the stage that are kept."""

    keep_every_steps: PositiveInt | None = None
    """Checkpoints at multiples of it are kept too."""

    evaluation_sequences: PositiveInt | None
    """Validation sequences an evaluation reads; null: all of them."""

    hang_seconds: PositiveFloat = 1800.0
    """A rank that does nothing for so long writes down where it is."""

    save_request: str | None = None
    """The file in which the runner asks the workers to save and to leave; null: nobody asks."""

    launched_at: float = Field(description="Unix time at which the runner launched this attempt, in seconds.")

    def rule(self, generation: int) -> GenerationRule:
        """How the parameters of a generation learn."""
        return self.generations[generation] if generation < len(self.generations) else GenerationRule()

    @property
    def settled_step(self) -> int:
        """As the function `settled_step` gives it for this stage."""
        return settled_step(
            self.num_steps, self.learning_rate, self.ramp_steps, self.anneal_steps, generations=self.generations
        )
