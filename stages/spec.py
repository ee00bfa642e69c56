"""The spec of a worker: everything it needs to train one stage, as JSON.

Imports no torch.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from model.config import Kernels
from model.config_growth import anneal_config, ramp_config
from model.flops import recomputed_flops_per_token
from model.parameter_names import OptimizerName
from model.precision import RequestedPrecision
from model.shapes import ModelConfig
from model.strict import Strict, example
from model.tokenformer_config import TokenformerConfig
from stages.augmentation import Augmentation

RateShape = Literal["wsd", "cosine"]
Packing = Literal["concatenate", "best_fit"]
"""How documents become training sequences: as the stream is cut, or packed so that few are cut."""

ZeroStage = Literal[1, 2, 3]
Offload = Literal["none", "optimizer"]
Action = Literal["skip", "rollback", "stop"]
"""What follows an update that was rejected."""


def warmed_up(rate: float, step: int, warmup_steps: int) -> float:
    """The rate of update `step` of a warm-up to `rate`, counted from 0: it rises by equal parts, from one part at the
    first update to all of them at the last."""
    return rate * (step + 1) / warmup_steps if step < warmup_steps else rate


class LearningRate(Strict):
    """The learning rate for every step of a span. A stage covers the whole span or a part of it."""

    shape: RateShape
    """`wsd`: warm-up, stable, linear decay. `cosine`: warm-up, then half a cosine."""

    peak: PositiveFloat
    final: NonNegativeFloat
    """The learning rate at the end of the span."""

    warmup_steps: NonNegativeInt
    decay_steps: NonNegativeInt
    """Steps of the linear decay at the end of the span (`wsd` only)."""

    total_steps: PositiveInt
    """Length of the span."""

    first_step: NonNegativeInt
    """The stage's first step within the span."""

    scale: PositiveFloat = 1.0
    """Factor on the rate of every step, for the stage's batch (`learning_rate.batch_scaling`)."""

    def at(self, step: int) -> float:
        """The learning rate for update number `step` of the stage, counted from 0."""
        return self.scale * self._unscaled(self.first_step + step)

    def _unscaled(self, position: int) -> float:
        if position < self.warmup_steps:
            return warmed_up(self.peak, position, self.warmup_steps)
        if self.shape == "cosine":
            progress = (position - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
            return self.final + (self.peak - self.final) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        left = self.total_steps - position
        return self.final + (self.peak - self.final) * min(1.0, max(0, left) / max(1, self.decay_steps))

    @property
    def undecayed_steps(self) -> int | None:
        """How many updates of the stage come before the decay; None if the rate does not stay at its peak (`cosine`) or
        never decays. May be negative, or more than the stage has.
        """
        if self.shape == "cosine" or self.decay_steps == 0:
            return None
        return self.total_steps - self.decay_steps + 1 - self.first_step


class GenerationRule(Strict):
    """How the parameters of one generation learn in a stage, as factors on the stage's learning rate.

    The embedding and the final norm belong to generation 0.
    """

    lr_scale: NonNegativeFloat = 1.0
    weight_decay: NonNegativeFloat | None = None
    """Weight decay of the generation; null: the optimizer's."""

    frozen_steps: NonNegativeInt = 0
    """Steps at the start of the stage with learning rate 0, and therefore without weight decay."""

    warmup_steps: NonNegativeInt = 0
    """Steps over which the factor rises to `lr_scale`, counted from the start of the stage or the end of the freeze."""

    def factor(self, step: int) -> float:
        """The factor on the learning rate for update number `step` of the stage, counted from 0."""
        position = step - self.frozen_steps
        return 0.0 if position < 0 else warmed_up(self.lr_scale, position, self.warmup_steps)


def progress_at(step: int, num_steps: int) -> float:
    """How far a ramp over `num_steps` steps has come at update `step`, counted from 0.

    It is above 0 from the first update on, because at 0 no new token gets a gradient. It is 1 from update `num_steps`
    on.
    """
    return min(1.0, (step + 1) / (num_steps + 1))


def evaluation_batch(micro_batch_size: int, sequence_length: int, evaluation_length: int) -> int:
    """Sequences of a pass of an evaluation: no more tokens than a micro-batch, or one sequence, so that they fit into
    memory."""
    return max(1, micro_batch_size * sequence_length // evaluation_length)


class SlopeTrigger(Strict):
    """Ends a stage before its budget is spent, once its validation loss falls too slowly for its cost."""

    slope: PositiveFloat
    """Nats per training FLOP. The stage ends when the fitted loss falls more slowly than this."""

    window: Annotated[int, Field(ge=2)]
    """Evaluations to which the slope is fitted. The stage does not end before it has that many."""

    step_flops: PositiveFloat
    """Training FLOPs per optimizer step."""

    def fitted(self, losses: Sequence[tuple[int, float]], settled_step: int = 0) -> float | None:
        """How fast the loss falls, in nats per FLOP, by a least-squares line through the last `window` losses.

        `losses` are (step, loss) pairs; those before `settled_step` do not count. None if there are fewer than
        `window`, or if one of them is not finite.
        """
        counted = [(step, loss) for step, loss in losses if step >= settled_step][-self.window :]
        if len(counted) < self.window or not all(math.isfinite(loss) for _, loss in counted):
            return None
        steps, values = zip(*counted, strict=True)
        return -statistics.linear_regression(steps, values).slope / self.step_flops


class Optimizer(Strict):
    """AdamW, or Muon for the matrices of the blocks and AdamW for the rest. Weight decay applies only to matrices."""

    name: OptimizerName = "adamw"
    betas: tuple[float, float]
    epsilon: PositiveFloat
    weight_decay: NonNegativeFloat
    gradient_clipping: NonNegativeFloat
    """The largest global gradient norm; 0: no clipping, as Muon needs."""

    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    """Decay per step of Muon's running mean of the gradient."""

    muon_lr_scale: PositiveFloat = 1.0
    """Muon's learning rate, as a multiple of AdamW's."""


class Anomalies(Strict):
    """What growctl does about loss spikes and about gradients that are not finite, which it never applies."""

    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True)

    non_finite: Annotated[Action, example("rollback")] = "skip"
    """What to do if a gradient is not finite. skip: skip the step's data. rollback: return to the last checkpoint and
    skip the data read since. stop: stop the run."""
    spikes: Annotated[Literal["ignore", Action], example("skip")] = "ignore"
    """What to do if a step's loss is a spike (`spike_z`). ignore: update anyway. The others: as in
    `non_finite`."""
    spike_z: Annotated[float, Field(gt=0.0, le=1e6), example(8.0, "robust standard deviations")] = 10.0
    """A loss is a spike if it exceeds the median of the last losses by this many robust standard deviations (each 1.48
    times the median absolute deviation, at least 0.01 nats)."""
    window: Annotated[int, Field(ge=8, le=100_000), example(128, "optimizer steps")] = 64
    """Number of steps whose losses give the median and the deviation for `spike_z`. Detection begins when warm-up and
    ramp are over and the window is full."""
    most: Annotated[int, Field(ge=1, le=1_000_000), example(3, "steps or rollbacks")] = 10
    """Maximum steps skipped in a row, or rollbacks to the same checkpoint. The next one stops the run."""


class MixtureSpan(Strict):
    """The weights of a mixture's sources from a window of the data on, until the next span begins."""

    first_window: NonNegativeInt
    """Counted from the first window of the ladder. A window has the tokens of the ladder's longest context."""

    weights: dict[str, NonNegativeFloat]
    """By the source's name, in any unit. A source without a weight is not read."""


class EvaluationPlan(Strict):
    """When a stage evaluates, and on what."""

    every: PositiveInt
    """Steps."""

    sequences: PositiveInt | None
    """Validation sequences; None: all."""

    length: PositiveInt
    """Tokens of a sequence."""


class TrainSpec(Strict):
    """One attempt at one stage."""

    stage: str
    attempt: PositiveInt
    directory: str
    """The stage's directory: metrics.jsonl, step_*/ and final/ are written there."""

    dataset: str
    """The directory of the prepared dataset, or of the mixture of several."""

    mixture: tuple[MixtureSpan, ...] = ()
    """For a mixture: what this stage and all stages before it read, oldest first, because a source's position follows
    from all samples so far. Empty: the mixture's own weights throughout, or a dataset of one source."""

    when_exhausted: Literal["stop", "others"] = "stop"
    """What follows when a source has been read as often as it may be: an error, or samples of the others."""

    model: ModelConfig
    """The model at the start of the stage."""

    initial: str | None
    """The `parameters` checkpoint that the stage starts from: a grown one, or for a release its stage's `final/`.
    null: a new model initialised with `seed`."""

    resume: str | None
    """The checkpoint within the stage to resume from: an `engine` checkpoint or a conversion of one. null: the start of
    the stage."""

    seed: NonNegativeInt
    samples_seen: NonNegativeInt
    """Where the stage begins in the data, in sequences of its own context: what earlier stages consumed."""

    num_steps: PositiveInt
    batch_size: PositiveInt
    """Sequences per optimizer step, over all ranks."""

    micro_batch_size: PositiveInt
    """Sequences per forward pass on one rank."""

    sequence_length: PositiveInt
    """The stage's context, in data tokens."""

    window_length: PositiveInt
    """The longest context of the ladder, on whose windows the order of the data is defined; a multiple of
    `sequence_length`."""

    evaluation_length: PositiveInt
    """The context at which the validation loss is measured: that of the ladder's last stage."""

    augmentation: Augmentation = Augmentation()
    """What training does to images before the model reads them."""

    packing: Packing = "concatenate"
    attended_tokens: PositiveFloat | None = None
    """How many data tokens a token attends to on average, for the cost of training; null: the whole sequence."""

    learning_rate: LearningRate
    optimizer: Optimizer
    generations: tuple[GenerationRule, ...] = ()
    """How each generation learns, by number. Generations without a rule learn with the stage's own settings."""

    ramp_steps: NonNegativeInt
    """Steps over which the factor on new keys rises to 1, if it started at 0."""

    anneal_steps: NonNegativeInt | None = None
    """Steps over which every tau moves to the published formula; null: tau stays."""

    trigger: SlopeTrigger | None = None
    """Ends the stage before `num_steps`, if set."""

    anomalies: Anomalies = Anomalies()
    left_out: tuple[tuple[NonNegativeInt, PositiveInt], ...] = ()
    """Data that rollbacks skipped, in the format of stages/train/skipped_data.py."""

    zero_stage: ZeroStage
    offload: Offload = "none"
    """`optimizer`: master weights and Adam's moments are stored and updated in host memory."""

    precision: RequestedPrecision
    kernels: Kernels = "eager"
    """How the model computes (model/config.py)."""

    recompute_every: PositiveInt | None = None
    """Activation checkpointing: training keeps the input of every so many blocks and recomputes the activations between
    them in the backward pass; null: it keeps all activations."""

    log_every: PositiveInt
    evaluate_every: PositiveInt
    checkpoint_every: PositiveInt
    keep_checkpoints: PositiveInt
    """How many of the newest checkpoints within the stage to keep."""

    keep_every_steps: PositiveInt | None = None
    """Checkpoints at multiples of this step are kept too."""

    keep_trunk: bool = False
    """Whether to save and keep a checkpoint right before the learning rate decays, from which training can go on."""

    evaluation_sequences: PositiveInt | None
    """Validation sequences of `evaluation_length` per evaluation; null: all of them."""

    hang_seconds: PositiveFloat = 1800.0
    """A rank that makes no progress for this long writes its stack traces."""

    made_in: str | None = None
    """The run and the stage, for people who later look at a checkpoint."""

    peak_flops: PositiveFloat | None = None
    """Peak FLOPs per second of one device, if the schedule gives it; for the record only."""

    price_per_device_hour: NonNegativeFloat | None = None
    """Price of one device for one hour, if the schedule gives it; for the record only."""

    launched_at: float = Field(description="Unix time at which the runner launched this attempt, in seconds.")

    @property
    def trunk_step(self) -> int | None:
        """The step after which to save the checkpoint right before the decay; None if the stage has no such step."""
        steps = self.learning_rate.undecayed_steps
        return steps if self.keep_trunk and steps is not None and 0 < steps < self.num_steps else None

    @property
    def recomputed_step_flops(self) -> float:
        """FLOPs of an optimizer step that activation checkpointing adds; they are no part of training FLOPs."""
        if self.recompute_every is None:
            return 0.0
        attended_tokens = self.attended_tokens or self.sequence_length
        return self.batch_size * self.sequence_length * recomputed_flops_per_token(self.model, attended_tokens)

    @property
    def evaluations(self) -> EvaluationPlan:
        """When the stage evaluates, on how many validation sequences, and of which length."""
        return EvaluationPlan(
            every=self.evaluate_every, sequences=self.evaluation_sequences, length=self.evaluation_length
        )

    @property
    def own_evaluation_sequences(self) -> int | None:
        """Sequences of the stage's own context that hold about as many tokens as those of an evaluation; None: all."""
        if self.evaluation_sequences is None:
            return None
        return -(-self.evaluation_sequences * self.evaluation_length // self.sequence_length)

    def rule(self, generation: int) -> GenerationRule:
        """The rule for the parameters of `generation`."""
        return self.generations[generation] if generation < len(self.generations) else GenerationRule()

    def weight_decay(self, generation: int) -> float:
        """AdamW's weight decay on the matrices of `generation`."""
        own = self.rule(generation).weight_decay
        return self.optimizer.weight_decay if own is None else own

    def model_after(self, step: int) -> ModelConfig:
        """The model after `step` steps, with the key ramps and tau of the last update."""
        if step == 0 or not isinstance(self.model, TokenformerConfig):
            return self.model
        config = ramp_config(self.model, progress_at(step - 1, self.ramp_steps))
        return config if self.anneal_steps is None else anneal_config(config, progress_at(step - 1, self.anneal_steps))

    @property
    def settled_step(self) -> int:
        """The first step of the stage at which learning rates, ramps and tau no longer change the loss by themselves.

        Generations that are frozen for the whole stage do not count.
        """
        warmup_steps = self.learning_rate.warmup_steps - self.learning_rate.first_step
        rules = (rule for rule in self.generations if rule.frozen_steps < self.num_steps)
        resting = [rule.warmup_steps + rule.frozen_steps for rule in rules]
        return max(0, warmup_steps, self.ramp_steps, self.anneal_steps or 0, *resting)
