"""The `growth` block of a schedule: how a model grows between stages and how it trains afterwards."""

from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, ValidationError, field_validator, model_validator

from growctl.schedule.example import example
from growctl.schedule.launch_block import Block
from growctl.schedule.quantities import Count, CountOrZero
from model.depth import Depth
from model.policy import PRESETS, GrowthPolicy, Init, Moments, Preset, TauPolicy
from model.transformer_sizes import Operator
from stages.spec import GenerationRule


class RewarmupBlock(Block):
    """A second warm-up: learning rates rise from 0 again at the start of every grown stage."""

    steps: Annotated[CountOrZero, example(100, "optimizer steps")] = 0
    """Steps of the warm-up; 0: none. The rates rise as those of `learning_rate.warmup_steps` do."""
    of: Annotated[Literal["all", "new"], example("new")] = "all"
    """all: every parameter warms up again. new: only the new generation does."""


class FreezeForBlock(Block):
    """Freezes the old parameters at the start of every grown stage."""

    freeze_for: Annotated[Count, example("1k", "optimizer steps")]
    """Steps for which they stay frozen."""


POLICIES: dict[Preset, dict[str, Any]] = {
    preset: GrowthPolicy.of(preset).model_dump(exclude={"depth"}) for preset in PRESETS
}
"""The value of every policy key but `depth`, by preset. Presets are about parameter tokens."""
_DEFAULT_PRESET: Preset = "growctl-default"


class GrowthBlock(Block):
    """How a model grows between stages and how it trains afterwards. By default growth preserves the function and ramps
    the new keys in over a short share of the stage."""

    preset: Annotated[Literal[Preset, "custom"], example("growctl-default")] = _DEFAULT_PRESET
    """A named policy: it sets init, tau, copy_noise, moments and allow_jump, and no key may contradict it. custom: a
    policy of your own; this is the default if one of those keys differs from growctl-default."""
    init: Annotated[Init, example("zero-value")] = "matched"
    """Initial keys and values of new tokens. random: as in a new model. matched: as random, scaled to the root mean
    square of the old ones. zero-key, zero-value: keys or values are zero. copy: copies of the old tokens."""
    tau: Annotated[TauPolicy, example("frozen")] = "ramp"
    """What happens to tau, the factor on the scores. ramp: new keys rise from 0, and tau follows to sqrt(n). frozen:
    tau stays. anneal: tau stays at growth, then moves to sqrt(n). recompute: tau is sqrt(n) at once. per-generation:
    the new generation is normalised separately, with its own tau."""
    ramp: Annotated[float, Field(gt=0.0, le=1.0), example(0.05, "share of the stage's steps")] = 0.02
    """Length of the ramp of new keys, as a share of a grown stage (`tau: ramp`)."""
    anneal: Annotated[float, Field(gt=0.0, le=1.0), example(0.2, "share of the stage's steps")] = 0.3
    """Share of a grown stage over which tau moves to sqrt(n) (`tau: anneal`)."""
    depth: Annotated[Depth, example("interleave")] = "append"
    """Where new layers of a tokenformer go (`stages.N.num_layers`). append: after the last one. interleave: spread
    evenly between the old ones. copy-stack: copies of all layers on top of them (G_stack); needs allow_jump."""
    copy_noise: Annotated[NonNegativeFloat, example(0.01, "standard deviations of a new token")] = 0.0
    """Noise added to copies, in units of a new token's standard deviation (`init: copy`)."""
    moments: Annotated[Moments, example("reset")] = "keep"
    """Whether a growth keeps or resets Adam's moments of the old parameters. Moments of new ones start at zero."""
    allow_jump: Annotated[bool, example(True)] = False
    """Whether a growth may change the function that the model computes."""
    old_tokens: Annotated[Literal["train", "freeze"] | FreezeForBlock, example({"freeze_for": "1k"})] = "train"
    """Whether everything but the newest generation trains in a grown stage: train, freeze, or {freeze_for: STEPS}."""
    lr_scale: Annotated[list[NonNegativeFloat], example([1.0, 0.5], "pure numbers")] = []
    """Factors on the learning rate in a grown stage, one per generation, newest first. The last one also holds for all
    older generations; by default 1."""
    weight_decay: Annotated[list[NonNegativeFloat], example([0.1, 0.0], "pure numbers")] = []
    """Weight decay in a grown stage, one per generation, newest first. The last one also holds for all older
    generations; by default optimizer.weight_decay."""
    rewarmup: RewarmupBlock = RewarmupBlock()
    """A second warm-up at the start of every grown stage; by default none."""
    when: Annotated[Literal["fixed", "slope"], example("slope")] = "fixed"
    """When a stage ends. fixed: after its whole budget. slope: once its validation loss falls too slowly, at the latest
    after its whole budget; the last stage always trains its whole budget."""
    slope: Annotated[PositiveFloat | None, example(1e-15, "nats per training FLOP")] = None
    """A stage ends when its validation loss falls by less than this, in nats per training FLOP (`when: slope`)."""
    slope_window: Annotated[int, Field(ge=2, le=1000), example(8, "evaluations")] = 5
    """Evaluations through which the slope is fitted."""
    operator: Annotated[Operator | None, example("net2net")] = None
    """How a transformer grows; required if it grows."""

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

    @field_validator("old_tokens", mode="before")
    @classmethod
    def _known_treatment(cls, value: Any) -> Any:
        if value in ("train", "freeze") or isinstance(value, FreezeForBlock):
            return value
        if isinstance(value, dict) and value.keys() == {"freeze_for"}:
            with suppress(ValidationError):
                return FreezeForBlock(**value)
        raise ValueError("must be train, freeze, or {freeze_for: STEPS}")

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
