"""The schema of a growth schedule: its blocks, their keys, and what each may be. pydantic judges.

What does not fit together is found by growctl/schedule/checks.py, once every value is good by itself.
"""

from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    ValidationError,
    field_validator,
    model_validator,
)

from growctl.schema.launch_block import Block, LaunchBlock
from growctl.schema.quantities import Count, CountOrZero, Vocabulary, parse_count
from model.config import ScoreFunction
from model.policy import PRESETS, GrowthPolicy, Init, Moments, Preset, TauPolicy
from model.precision import RequestedPrecision
from model.transformer_sizes import Operator
from stages.data.corpus import DEFAULT_VOCAB_SIZE, DataSpec
from stages.spec import Action, Anomalies, GenerationRule, Optimizer, RateShape

MOST_STAGES = 32
"""Doubling as often would make a model of one parameter larger than any that there is."""
Width = Annotated[int, Field(gt=0, le=2**20)]
StageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,239}$")]
"""As RUN_NAME, with room for what a control's name has behind its ladder's, a stage's name too. A file's has 255."""


class DataBlock(DataSpec):
    """`stages.data.corpus.DataSpec`, with the vocabulary as people write it."""

    model_config = ConfigDict(allow_inf_nan=False)

    vocab_size: Vocabulary | None = None
    """Entries of the byte-level BPE that is trained on the text."""

    approximate_tokens: Count | None = None
    """Training tokens of the prepared text, roughly: from it `plan` tells epochs until the dataset is there."""

    @property
    def num_tokens(self) -> int | None:
        """Entries of the tokenizer, where the schedule alone tells."""
        return None if self.tokenizer else (self.vocab_size or DEFAULT_VOCAB_SIZE)


class ModelBlock(Block):
    """What all stages of a run have in common: growth changes none of it."""

    family: Literal["tokenformer", "transformer"] = "tokenformer"
    num_layers: Annotated[int, Field(gt=0, le=1000)]
    hidden_size: Width
    """Model width."""
    num_heads: Width
    vocab_size: Count | None = None
    """Rows of the embedding; by default the vocabulary that `data.vocab_size` trains."""
    ffn_size: Width | None = None
    """Inner width of a transformer's MLP; by default 4 x hidden_size."""
    score_function: ScoreFunction = "l2_norm_gelu"
    rotary_fraction: float = Field(default=0.25, ge=0.0, le=1.0)
    rotary_base: PositiveFloat = 10000.0


class StageBlock(Block):
    """One stage: a size, trained for a budget."""

    name: StageName
    """Label, unique in the ladder, used in paths and tables."""
    attention_tokens: Count | None = None
    """Parameter tokens in each of Q, K, V and O."""
    ffn_tokens: Count | None = None
    """Parameter tokens in the FFN."""
    layers: list[Annotated[int, Field(ge=0, le=999)]] | None = None
    """Layers that grow to these tokens, counted from 0; by default all."""
    num_layers: Annotated[int, Field(gt=0, le=1000)] | None = None
    """A transformer's depth from this stage on (`growth.operator`)."""
    hidden_size: Width | None = None
    """A transformer's width from this stage on; heads keep their width."""
    ffn_size: Width | None = None
    """Inner width of a transformer's MLP from this stage on; by default in proportion to the width."""
    train_tokens: Count | None = None
    """Data tokens of this stage; rounded to whole steps. Either this or train_steps."""
    train_steps: Count | None = None
    """Optimizer steps of this stage."""


class TrainingBlock(Block):
    """What every optimizer step looks like."""

    sequence_length: Count
    """Context, data tokens."""
    batch_size: Count
    """Sequences an optimizer step, over all devices."""
    batch_tokens: Count | None = None
    """The same in data tokens; give one of the two."""
    precision: RequestedPrecision = "auto"
    """bf16 with float32 master weights, or float32. auto: bf16 where the device is fast at it."""
    log_every: Count = 10
    """Steps between lines of training loss."""

    @model_validator(mode="before")
    @classmethod
    def _batch_in_tokens(cls, data: Any) -> Any:
        """Works out batch_size from batch_tokens; where both are there, they must agree."""
        if not isinstance(data, dict) or data.get("batch_tokens") is None:
            return data
        own = {"batch_size": 1} | data  # where a value is wrong by itself: its own message says so
        try:
            tokens, length = parse_count(data["batch_tokens"]), parse_count(data.get("sequence_length"))
            size = parse_count(data["batch_size"]) if "batch_size" in data else max(1, tokens // max(1, length))
        except ValueError:
            return own
        if min(tokens, length, size) < 1:
            return own
        if size * length != tokens:
            if "batch_size" in data:
                raise ValueError(
                    f"batch_size = {size} and batch_tokens = {tokens} differ (sequence_length is {length}); drop one "
                    "(as an override: ~training.batch_tokens)"
                )
            raise ValueError(f"batch_tokens = {tokens}: must be a multiple of sequence_length, {length}")
        return data | {"batch_size": size}


class LearningRateBlock(Block):
    """Warm-up, then hold and decay (`wsd`) or a cosine."""

    peak: PositiveFloat
    final: NonNegativeFloat = 0.0
    """The rate at the end."""
    shape: RateShape = "wsd"
    span: Literal["ladder", "stage"] = "ladder"
    """ladder: one warm-up at the start, one decay at the end of all stages. stage: each stage its own (the paper)."""
    warmup_steps: CountOrZero = 0
    decay: float = Field(default=0.2, ge=0.0, le=1.0)
    """Share of the span that the decay takes (`wsd`)."""


class OptimizerBlock(Block):
    """AdamW, with the paper's values as defaults."""

    betas: Annotated[list[Annotated[float, Field(ge=0.0, lt=1.0)]], Field(min_length=2, max_length=2)] = [0.9, 0.95]
    epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    """On matrices only."""
    gradient_clipping: NonNegativeFloat = 1.0
    """Largest global gradient norm; 0: none."""

    def optimizer(self) -> Optimizer:
        """The same, for a worker."""
        first, second = self.betas
        return Optimizer(
            betas=(first, second),
            epsilon=self.epsilon,
            weight_decay=self.weight_decay,
            gradient_clipping=self.gradient_clipping,
        )


class RewarmupBlock(Block):
    """Learning rates rise from 0 once more, at the start of every grown stage."""

    steps: CountOrZero = 0
    of: Literal["all", "new"] = "all"
    """All parameters, or the new generation only."""


class FreezeForBlock(Block):
    """Old parameters rest at first."""

    freeze_for: Count
    """Steps at the start of every grown stage."""


POLICIES: dict[Preset, dict[str, Any]] = {preset: GrowthPolicy.of(preset).model_dump() for preset in PRESETS}
"""What each preset says of every key of a policy."""
_DEFAULT_PRESET: Preset = "growctl-default"


class GrowthBlock(Block):
    """How a model grows between stages, and how it then trains. Without this block: exact, by a short ramp."""

    preset: Literal[Preset, "custom"] = _DEFAULT_PRESET
    """The named policy that init, tau, copy_noise, moments and allow_jump follow; no key may contradict it. custom: a
    policy of your own, the default where one of those keys differs from growctl-default's."""
    init: Init = "matched"
    """What new tokens begin with."""
    tau: TauPolicy = "ramp"
    """What becomes of the scale of the scores."""
    ramp: float = Field(default=0.02, gt=0.0, le=1.0)
    """Share of a grown stage over which new keys rise from 0, with `tau: ramp`."""
    anneal: float = Field(default=0.3, gt=0.0, le=1.0)
    """Share of a grown stage over which tau moves to sqrt(n), with `tau: anneal`."""
    copy_noise: NonNegativeFloat = 0.0
    """Noise on copies, in units of a new token's standard deviation (`init: copy`)."""
    moments: Moments = "keep"
    """Adam's moments of the old parameters; those of new ones begin at zero."""
    allow_jump: bool = False
    """Whether a growth may change the function."""
    old_tokens: Literal["train", "freeze"] | FreezeForBlock = "train"
    """What everything but the newest generation does in a grown stage: train, freeze, or {freeze_for: STEPS}."""
    lr_scale: list[NonNegativeFloat] = []
    """Factors on the learning rate in a grown stage, the newest generation's first; the last holds for all older."""
    weight_decay: list[NonNegativeFloat] = []
    """Weight decay in a grown stage, the newest generation's first; by default optimizer.weight_decay."""
    rewarmup: RewarmupBlock = RewarmupBlock()
    when: Literal["fixed", "slope"] = "fixed"
    """fixed: a stage trains its whole budget. slope: until its loss falls too slowly, but no more than its budget."""
    slope: PositiveFloat | None = None
    """Nats of validation loss per training FLOP below which it grows (`when: slope`)."""
    slope_window: Annotated[int, Field(ge=2, le=1000)] = 5
    """Evaluations over which the slope is fitted."""
    operator: Operator | None = None
    """How a transformer grows."""

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
        """What `preset` says of each key of a policy that says something else here. An idle permission does not."""
        return {
            key: value
            for key, value in POLICIES[preset].items()
            if getattr(self, key) != value and not (key == "allow_jump" and self.allow_jump)
        }

    def policy(self) -> GrowthPolicy:
        """What happens at the moment of a growth."""
        return GrowthPolicy(**{name: getattr(self, name) for name in GrowthPolicy.model_fields})

    def rules(self, newest: int, num_steps: int) -> tuple[GenerationRule, ...]:
        """How the generations 0 to `newest` learn in a grown stage of `num_steps`."""
        frozen = {"train": 0, "freeze": num_steps}
        resting = frozen[self.old_tokens] if isinstance(self.old_tokens, str) else self.old_tokens.freeze_for

        def rule(age: int) -> GenerationRule:
            return GenerationRule(
                lr_scale=self.lr_scale[min(age, len(self.lr_scale) - 1)] if self.lr_scale else 1.0,
                weight_decay=self.weight_decay[min(age, len(self.weight_decay) - 1)] if self.weight_decay else None,
                frozen_steps=resting if age else 0,
                warmup_steps=self.rewarmup.steps if age == 0 or self.rewarmup.of == "all" else 0,
            )

        return tuple(rule(newest - number) for number in range(newest + 1))


class EvaluationBlock(Block):
    """Validation during a stage. At its end there is always one over the same sequences, in float32."""

    every: Count = 500
    """Steps."""
    max_sequences: Count | None = None
    """Validation sequences read each time; by default all."""


class CheckpointBlock(Block):
    """Checkpoints within a stage."""

    every: Count = 500
    """Steps."""
    keep: Count = 2
    """How many of the newest are kept."""
    keep_every: Count | None = None
    """Every so many-th checkpoint of a stage is kept too; by default none."""
    check_space: bool = True
    """Whether a run starts only where what it will write fits on the disk."""


class AnomaliesBlock(Block):
    """Updates that would do harm are never made, on no device. This says what follows."""

    non_finite: Action = "skip"
    """A gradient that is not finite: skip the step, roll back to a checkpoint and leave the data since out, or stop."""
    spikes: Literal["ignore", Action] = "ignore"
    """The same for a step whose loss is far above those before; ignore: it is trained on."""
    spike_z: Annotated[float, Field(gt=0.0, le=1e6)] = 10.0
    """How far that is: robust standard deviations above the median of the last losses."""
    window: Annotated[int, Field(ge=8, le=100_000)] = 64
    """Steps whose losses those are; until as many are known, behind warm-up and ramp, no step is a spike."""
    most: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Steps skipped in a row, or rollbacks to the same checkpoint; with one more the run stops."""

    def policy(self) -> Anomalies:
        """The same, for a worker."""
        return Anomalies(**self.model_dump())


class ControlBlock(Block):
    """A run generated for comparison."""

    kind: Literal["tokenformer-scratch", "transformer-scratch", "best-scratch", "single-jump", "official-growth"]
    """tokenformer-scratch: the last stage's size from scratch; transformer-scratch: the Transformer nearest to it in
    parameters; best-scratch: every size of the ladder from scratch; single-jump: the first size grown to the last at
    once; official-growth: the same ladder, grown as the official code does."""
    budgets: Annotated[list[Annotated[float, Field(ge=0.001, le=1000.0)]], Field(min_length=1)] = [1.0]
    """Its FLOPs, as multiples of the whole ladder's; one run each. Three or more let the report find equal loss."""


class Schedule(Block):
    """A whole growth schedule, with every default written out."""

    name: Name | None = None
    """Name of the run; by default the file's."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    data: DataBlock
    model: ModelBlock
    stages: Annotated[list[StageBlock], Field(min_length=1, max_length=MOST_STAGES)]
    training: TrainingBlock
    learning_rate: LearningRateBlock
    optimizer: OptimizerBlock = OptimizerBlock()
    growth: GrowthBlock = GrowthBlock()
    evaluation: EvaluationBlock = EvaluationBlock()
    checkpoint: CheckpointBlock = CheckpointBlock()
    anomalies: AnomaliesBlock = AnomaliesBlock()
    controls: list[ControlBlock] = []
    launch: LaunchBlock = LaunchBlock()

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        size = self.model.vocab_size or self.data.num_tokens
        assert size is not None
        return size

    @model_validator(mode="before")
    @classmethod
    def _official_rates(cls, data: Any) -> Any:
        """The official growth comes with a learning rate of its own for every stage, unless another is given."""
        growth = data.get("growth") if isinstance(data, dict) else None
        if (
            isinstance(growth, dict)
            and growth.get("preset") == "official"
            and isinstance(data.get("learning_rate"), dict)
        ):
            return data | {"learning_rate": {"shape": "cosine", "span": "stage"} | data["learning_rate"]}
        return data
