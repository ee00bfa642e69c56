"""The blocks of a schedule that say how its models train and grow."""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, model_validator

from growctl.schedule.fields import Block, Count, CountOrZero
from model.parameter_names import OptimizerName
from model.policy import PRESETS, GrowthPolicy, Preset
from model.precision import RequestedPrecision
from model.strict import example
from stages.generate.text_samples import TextRequest
from stages.spec import GenerationRule, Optimizer, RateShape

Prompt = Annotated[str, Field(max_length=1_000)]
BatchScaling = Literal["none", "sqrt", "linear"]


class TrainingBlock(Block):
    """Batch, context and precision of every optimizer step, and the ladder's budget."""

    sequence_length: Annotated[Count, example(1024, "data tokens")]
    """Context length in data tokens; not needed for images."""
    batch_size: Annotated[Count, example(512, "sequences")]
    """Sequences per optimizer step, over all devices."""
    ladder_tokens: Annotated[Count | None, example("27B", "data tokens")] = None
    """Budget of the whole ladder in data tokens, in place of one per stage; `stages.N.until` is the share at which a
    stage ends. Not together with `ladder_flops`."""
    ladder_flops: Annotated[PositiveFloat | None, example(1e20, "training FLOPs")] = None
    """Budget of the whole ladder in training FLOPs."""
    precision: Annotated[RequestedPrecision, example("bf16")] = "auto"
    """bf16: bfloat16 with float32 master weights. fp32: float32. auto: bf16 if the device is fast at it, else fp32."""
    log_every: Annotated[Count, example(50, "optimizer steps")] = 10
    """Steps between log lines."""


class LearningRateBlock(Block):
    """The learning-rate schedule."""

    peak: Annotated[PositiveFloat, example(6e-4, "pure number")]
    """Learning rate after the warm-up."""
    final: Annotated[NonNegativeFloat, example(6e-5, "pure number")] = 0.0
    """Learning rate at the end of the `span`."""
    shape: Annotated[RateShape, example("cosine")] = "wsd"
    """wsd: constant at `peak`, then a linear decay to `final`. cosine: half a cosine from `peak` to `final`."""
    span: Annotated[Literal["ladder", "stage"], example("stage")] = "ladder"
    """ladder: one warm-up at the start of the ladder, one decay at its end. stage: one of each in every stage, as in
    the Tokenformer paper."""
    warmup_steps: Annotated[CountOrZero, example(2000, "optimizer steps")] = 0
    """Steps in which the rate rises linearly: step k of N, counted from 1, trains at k / N of `peak`."""
    decay: Annotated[float, Field(ge=0.0, le=1.0), example(0.25, "share of the span")] = 0.2
    """Length of the decay, as a share of the `span` (`shape: wsd`)."""
    batch_scaling: Annotated[BatchScaling, example("sqrt")] = "none"
    """Factor on the learning rate of a stage with r times the data tokens per step that `training` sets. none: 1. sqrt:
    sqrt(r). linear: r."""


class EvaluationBlock(Block):
    """Validation during a stage. Every stage also ends with a validation on the same sequences, in float32."""

    every: Annotated[Count, example(1000, "optimizer steps")] = 500
    """Steps between evaluations."""
    max_sequences: Annotated[Count | None, example(1000, "sequences")] = None
    """Validation sequences per evaluation; by default all."""


class SamplesBlock(Block):
    """Texts that the model writes after every stage. They do not affect training."""

    prompts: Annotated[list[Prompt], Field(max_length=16), example(["Once upon a time", ""])] = []
    """How each text begins; an empty prompt begins a new document."""
    max_new_tokens: Annotated[Count, Field(le=1_000), example(100, "data tokens")] = 60
    """Maximum tokens after each prompt; a full context also ends the text."""
    temperature: Annotated[float, Field(ge=0.0, le=100.0), example(0.7, "pure number")] = 0.8
    """Sampling temperature; 0 takes the likeliest token. Sampling always uses the same seed, so texts of
    two stages differ only if the models do."""

    def request(self) -> TextRequest:
        """Returns the form of this block that stages/generate takes."""
        return TextRequest(
            prompts=tuple(self.prompts), max_new_tokens=self.max_new_tokens, temperature=self.temperature
        )


class CheckpointBlock(Block):
    """Checkpoints within a stage."""

    every: Annotated[Count, example(1000, "optimizer steps")] = 500
    """Steps between checkpoints."""
    keep: Annotated[Count, example(3, "checkpoints")] = 2
    """How many of the newest checkpoints to keep."""
    keep_every: Annotated[Count | None, example(10, "checkpoints")] = None
    """Also keep every n-th of a stage's checkpoints."""
    keep_trunk: Annotated[bool, example(False)] = True
    """Whether each stage whose learning rate decays (`wsd`) also keeps the checkpoint right before the decay. A longer
    ladder can continue from it."""
    check_space: Annotated[bool, example(False)] = True
    """Whether a run starts only if its checkpoints fit on the disk."""


Beta = Annotated[float, Field(ge=0.0, lt=1.0)]

MOMENTUM = 0.95
"""The usual momentum of Muon."""

ADAMW_RMS = 0.2
"""About the root mean square of AdamW's updates at a learning rate of 1 (Liu et al., arXiv 2502.16982)."""


class OptimizerBlock(Block):
    """AdamW's defaults are the Tokenformer paper's values."""

    name: Annotated[OptimizerName, example("muon")] = "adamw"
    """adamw: AdamW for all parameters. muon: DeepSpeed's Muon for the matrices of the layers, separately for each
    generation, and AdamW for the rest."""
    betas: Annotated[list[Beta], Field(min_length=2, max_length=2), example([0.9, 0.98], "pure numbers")] = [0.9, 0.95]
    """AdamW's decay rates of the running means of the gradient and of its square."""
    epsilon: Annotated[PositiveFloat, example(1e-6, "pure number")] = 1e-8
    """AdamW's epsilon, added to the denominator of the update."""
    weight_decay: Annotated[NonNegativeFloat, example(0.01, "pure number")] = 0.1
    """Decoupled weight decay, for matrices only. Each step shrinks them by this value times AdamW's learning rate, also
    with Muon."""
    gradient_clipping: Annotated[NonNegativeFloat, example(0.5, "L2 norm of the gradient")] = 1.0
    """Largest global gradient norm; 0 turns clipping off. With Muon it must be 0, which is then the default."""
    momentum: Annotated[Beta, example(0.9, "pure number")] = MOMENTUM
    """Decay rate of Muon's running mean of the gradient."""
    muon_lr_scale: Annotated[PositiveFloat | None, example(8.0, "pure number")] = None
    """Muon's learning rate as a multiple of `learning_rate`; by default 0.2 times the square root of the width, which
    makes its updates about as large as AdamW's."""

    @model_validator(mode="before")
    @classmethod
    def _no_clipping_with_muon(cls, data: Any) -> Any:
        """Turns clipping off for Muon unless the schedule sets it."""
        if isinstance(data, dict) and data.get("name") == "muon":
            return {"gradient_clipping": 0.0} | data
        return data

    def optimizer(self, hidden_size: int) -> Optimizer:
        """Returns the worker's form of this block, for a model of this width."""
        first, second = self.betas
        usual_scale = ADAMW_RMS * math.sqrt(hidden_size) if self.name == "muon" else 1.0
        return Optimizer(
            name=self.name,
            betas=(first, second),
            epsilon=self.epsilon,
            weight_decay=self.weight_decay,
            gradient_clipping=self.gradient_clipping,
            momentum=self.momentum,
            muon_lr_scale=self.muon_lr_scale or usual_scale,
        )


class RewarmupBlock(Block):
    """A second warm-up of the learning rate, at the start of every grown stage."""

    steps: Annotated[CountOrZero, example(100, "optimizer steps")] = 0
    """Steps in which the rate rises, as in `learning_rate.warmup_steps`."""
    of: Annotated[Literal["all", "new"], example("new")] = "all"
    """Parameters whose rate warms up again. all: all of them. new: only the new generation."""


class FreezeForBlock(Block):
    """Freezes the old parameters at the start of every grown stage."""

    freeze_for: Annotated[Count, example("1k", "optimizer steps")]
    """Steps that the freeze lasts."""


POLICIES: dict[Preset, dict[str, Any]] = {
    preset: GrowthPolicy.of(preset).model_dump(exclude={"depth", "routing"}) for preset in PRESETS
}
"""The value of every policy key but `depth` and `routing`, by preset."""
_DEFAULT_PRESET: Preset = "growctl-default"


class GrowthBlock(GrowthPolicy):
    """How a model grows between stages and how it trains afterwards."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    preset: Annotated[Literal[Preset, "custom"], example("growctl-default")] = _DEFAULT_PRESET
    """A policy (docs/growing.md) that sets `init`, `tau`, `copy_noise`, `moments` and `allow_jump`; you may not
    contradict it. custom: your own, which also applies if you set no `preset` and any of these keys except
    `allow_jump` differs from growctl-default."""
    ramp: Annotated[float, Field(gt=0.0, le=1.0), example(0.05, "share of the stage's steps")] = 0.02
    """Share of a grown stage's steps in which the factor on new keys rises to 1 (`tau: ramp`)."""
    anneal: Annotated[float, Field(gt=0.0, le=1.0), example(0.2, "share of the stage's steps")] = 0.3
    """Share of a grown stage's steps in which tau moves to its new value (`tau: anneal`)."""
    old_tokens: Annotated[Literal["train", "freeze"] | FreezeForBlock, example({"freeze_for": "1k"})] = "train"
    """Whether parameters outside the newest generation train in a grown stage. train: yes. freeze: no. {freeze_for: N}:
    only after N steps."""
    lr_scale: Annotated[list[NonNegativeFloat], example([1.0, 0.5], "pure numbers")] = []
    """Factors on the learning rate in a grown stage, one per generation, newest first; the last one also applies to all
    older generations. By default all are 1."""
    weight_decay: Annotated[list[NonNegativeFloat], example([0.1, 0.0], "pure numbers")] = []
    """Weight decay in a grown stage, listed as in `lr_scale`; by default `optimizer.weight_decay`."""
    rewarmup: RewarmupBlock = RewarmupBlock()
    """A second warm-up at the start of every grown stage; by default none."""
    when: Annotated[Literal["fixed", "slope"], example("slope")] = "fixed"
    """When a stage ends. fixed: after its budget. slope: as soon as its validation loss falls too slowly, at the latest
    after its budget. The last stage always uses its whole budget."""
    slope: Annotated[PositiveFloat | None, example(1e-15, "nats per training FLOP")] = None
    """Required with `when: slope`: a stage ends when its validation loss falls by less than this, in nats per
    training FLOP (for example 1e-15)."""
    slope_window: Annotated[int, Field(ge=2, le=1000), example(8, "evaluations")] = 5
    """The slope of the loss is fitted to this many of the latest evaluations."""

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        """growctl/ladder/checks.py rejects combinations: `copy_noise` has a meaning for decoders too."""
        return self

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if "preset" in data:
            preset = data["preset"]
            return (PRESETS[preset] if isinstance(preset, str) and preset in PRESETS else {}) | data
        policy = POLICIES[_DEFAULT_PRESET]
        differs = any(key in data and data[key] != policy[key] for key in policy if key != "allow_jump")
        return {"preset": "custom" if differs else _DEFAULT_PRESET} | data

    def departures(self, preset: Preset) -> dict[str, Any]:
        """The keys whose values here contradict `preset`, each with the preset's value.

        An `allow_jump` that the policy does not need contradicts nothing.
        """
        return {
            key: value
            for key, value in POLICIES[preset].items()
            if getattr(self, key) != value and not (key == "allow_jump" and self.allow_jump)
        }

    def policy(self) -> GrowthPolicy:
        """The policy that acts at the moment of a growth."""
        return GrowthPolicy(**{name: getattr(self, name) for name in GrowthPolicy.model_fields})

    def rules(self, newest: int, num_steps: int) -> tuple[GenerationRule, ...]:
        """How generations 0 to `newest` learn in a grown stage of `num_steps`, in that order."""
        frozen = {"train": 0, "freeze": num_steps}
        frozen_steps = frozen[self.old_tokens] if isinstance(self.old_tokens, str) else self.old_tokens.freeze_for

        def rule(age: int) -> GenerationRule:
            return GenerationRule(
                lr_scale=self.lr_scale[min(age, len(self.lr_scale) - 1)] if self.lr_scale else 1.0,
                weight_decay=self.weight_decay[min(age, len(self.weight_decay) - 1)] if self.weight_decay else None,
                frozen_steps=frozen_steps if age else 0,
                warmup_steps=self.rewarmup.steps if age == 0 or self.rewarmup.of == "all" else 0,
            )

        return tuple(rule(newest - number) for number in range(newest + 1))
