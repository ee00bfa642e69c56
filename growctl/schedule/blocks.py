"""The pydantic models of a growth schedule: its blocks, their keys and allowed values.

growctl/ladder/checks.py rejects bad combinations, after pydantic has accepted every single value.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from growctl.schedule.data_block import DataBlock
from growctl.schedule.example import example
from growctl.schedule.growth_block import GrowthBlock
from growctl.schedule.launch_block import Block, LaunchBlock
from growctl.schedule.mixture_block import FollowedWeights, Weights
from growctl.schedule.optimizer_block import OptimizerBlock
from growctl.schedule.quantities import Count, CountOrZero, parse_count
from growctl.schedule.start_block import BaseBlock, StartBlock
from growctl.text.suggestion import did_you_mean
from model.config import ScoreFunction
from model.precision import RequestedPrecision
from stages.generate.text_samples import TextRequest
from stages.spec import Action, Anomalies, RateShape

MOST_STAGES = 32
"""More than any ladder needs: 31 doublings would grow even a model of 1k parameters to 2T."""
Width = Annotated[int, Field(gt=0, le=2**20)]
NumLayers = Annotated[int, Field(ge=0, le=1000)]
LayerNumber = Annotated[int, Field(ge=0, le=999)]
Prompt = Annotated[str, Field(max_length=1_000)]
Budget = Annotated[float, Field(ge=0.001, le=1000.0)]
BatchScaling = Literal["none", "sqrt", "linear"]
StageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,239}$")]
"""Like RUN_NAME, but longer: a control's name adds its kind and a stage's name to the ladder's. Files allow 255."""


class ModelBlock(Block):
    """The model: the settings that all stages of a run share."""

    family: Annotated[Literal["tokenformer", "transformer"], example("tokenformer")] = "tokenformer"
    """tokenformer: all linear layers of a block are Pattentions, which can grow. transformer: the ordinary baseline."""
    num_layers: Annotated[NumLayers, example(12, "layers")]
    """Blocks, one after another, before any stage changes the depth. 0, for a tokenformer: only the embedding, the
    final norm and the output head."""
    hidden_size: Annotated[Width, example(768, "dimensions")]
    """Width of the model (the residual stream). Tokenformer growth never changes it."""
    num_heads: Annotated[Width, example(4, "heads")]
    """Attention heads; must divide hidden_size."""
    vocab_size: Annotated[Count | None, example(50_432, "rows")] = None
    """Rows of the embedding; by default `data.vocab_size`, or the entries of the tokenizer if the text is a prepared
    dataset. Required with `data.tokenizer` for other texts."""
    ffn_size: Annotated[Width | None, example(3072, "dimensions")] = None
    """Inner width of a transformer's MLP; by default 4 x hidden_size."""
    score_function: Annotated[ScoreFunction, example("gelu_l2_norm")] = "l2_norm_gelu"
    """How a Pattention turns the products of inputs and keys into weights of the values. l2_norm_gelu: L2 norm, then
    GELU. gelu_l2_norm: GELU, then L2 norm. softmax: cannot preserve the function when it grows."""
    rotary_fraction: Annotated[float, Field(ge=0.0, le=1.0), example(0.5, "share of a head's dimensions")] = 0.25
    """Share of each attention head's dimensions that encode the position; 0: the model does not see positions."""
    rotary_base: Annotated[PositiveFloat, example(500_000.0, "pure number")] = 10000.0
    """Base of the rotary embedding's wavelengths; a larger one suits longer contexts."""


class ReleaseBlock(Block):
    """How the learning rate of a release decays."""

    decay: Annotated[float, Field(gt=0.0, le=1.0), example(0.2, "share of the stage's steps")] = 0.1
    """Steps of the release, as a share of its stage's steps. The rate decays over all of them. The default is what
    MiniCPM (arXiv 2404.06395) found to be enough."""


class StageBlock(Block):
    """One stage: a size, trained for a budget."""

    name: Annotated[StageName, example("354m")]
    """Label, unique in the ladder, used in paths and tables."""
    attention_tokens: Annotated[Count | None, example(1024, "parameter tokens")] = None
    """Parameter tokens in each of Q, K, V and O; by default as in the stage before."""
    ffn_tokens: Annotated[Count | None, example(4096, "parameter tokens")] = None
    """Parameter tokens in the FFN; by default as in the stage before."""
    layers: Annotated[list[LayerNumber] | None, example([0, 1], "numbers of layers")] = None
    """Layers that grow to these numbers of tokens, counted from 0; by default all. Not together with num_layers."""
    num_layers: Annotated[NumLayers | None, example(24, "layers")] = None
    """Depth from this stage on; by default as in the stage before. New layers of a tokenformer start as the identity
    and are placed by `growth.depth`; those of a transformer come from `growth.operator`."""
    hidden_size: Annotated[Width | None, example(1024, "dimensions")] = None
    """Width of a transformer from this stage on; heads keep their width."""
    ffn_size: Annotated[Width | None, example(4096, "dimensions")] = None
    """Inner width of a transformer's MLP from this stage on; by default in proportion to the width."""
    train_tokens: Annotated[Count | None, example("1.4B", "data tokens")] = None
    """Budget in data tokens, rounded to whole steps. Set this, train_steps or until."""
    train_steps: Annotated[Count | None, example(20_000, "optimizer steps")] = None
    """Budget in optimizer steps."""
    until: Annotated[float | None, Field(gt=0.0, le=1.0), example(0.8, "share of the ladder's budget")] = None
    """Where the stage ends, as a share of the whole ladder's `training.ladder_tokens` or `training.ladder_flops`; by
    default 1 in the last stage. Every other stage needs it then, above that of the stage before and below 1."""
    batch_size: Annotated[Count | None, example(256, "sequences")] = None
    """Sequences per optimizer step of this stage, over all devices; by default `training.batch_size`, or with a
    `sequence_length` of its own, as many as keep the data tokens per step of `training`."""
    batch_tokens: Annotated[Count | None, example("256k", "data tokens")] = None
    """Data tokens per optimizer step of this stage, in place of batch_size; a multiple of its context."""
    sequence_length: Annotated[Count | None, example(256, "data tokens")] = None
    """Context length of this stage; by default `training.sequence_length`. It must divide the longest context of the
    ladder."""
    ramp_steps: Annotated[Count | None, example(400, "optimizer steps")] = None
    """Steps over which new keys rise, or tau moves, after the growth to this stage; by default a share of the stage
    (`growth.ramp`, `growth.anneal`). With it, a longer stage starts like a shorter one."""
    mixture: Annotated[Weights | None, Field(min_length=1), example({"books": 1, "code": 3}, "pure number")] = None
    """Weights of the sources of `data.mixture` from the stage's first sample on; by default those of `data.mixture`. A
    source without a weight, or with 0, is not read."""
    followed: Annotated[
        SkipJsonSchema[list[FollowedWeights] | None], Field(exclude_if=lambda followed: followed is None)
    ] = None
    """In place of `mixture`, for a control: the weights of its ladder's stages, at the same shares of its own steps.
    growctl writes it; users leave it out."""
    release: Annotated[bool | ReleaseBlock | None, example({"decay": 0.2})] = None
    """Whether the stage also ends in a finished model: a branch from its end, on which the learning rate decays. The
    ladder continues undecayed. true, false, or {decay: SHARE}; by default as `releases` says."""

    @field_validator("layers", mode="before")
    @classmethod
    def _which_not_how_many(cls, value: Any) -> Any:
        if type(value) is int:
            raise ValueError("must be a list, such as [0, 1]; the number of layers is num_layers")
        return value

    @field_validator("until", mode="before")
    @classmethod
    def _no_percentage(cls, value: Any) -> Any:
        number, is_percentage = str(value).removesuffix("%"), str(value).endswith("%")
        try:
            percent = float(number)
        except ValueError:
            return value
        if (0 if is_percentage else 1) < percent <= 100:
            raise ValueError(f"must be a share, above 0 and 1 at most; write {percent / 100:g} for {percent:g} %")
        return value

    @field_validator("release", mode="before")
    @classmethod
    def _known_release(cls, value: Any) -> Any:
        if value is None or isinstance(value, bool | ReleaseBlock):
            return value
        if isinstance(value, dict):
            return ReleaseBlock.model_validate(value)  # its errors name the key inside the block
        raise ValueError("must be true, false, or {decay: SHARE}, with a share above 0 and 1 at most")


class TrainingBlock(Block):
    """The batch, the context and the precision of every optimizer step."""

    sequence_length: Annotated[Count, example(1024, "data tokens")]
    """Context length in data tokens."""
    batch_size: Annotated[Count, example(512, "sequences")]
    """Sequences per optimizer step, over all devices. Set either this or batch_tokens."""
    batch_tokens: Annotated[Count | None, example("512k", "data tokens")] = None
    """Data tokens per optimizer step, over all devices; must be a multiple of sequence_length."""
    ladder_tokens: Annotated[Count | None, example("27B", "data tokens")] = None
    """Budget of all stages together in data tokens, in place of a budget in every stage: each stage but the last has an
    `until`. Set either this or ladder_flops."""
    ladder_flops: Annotated[PositiveFloat | None, example(1e20, "training FLOPs")] = None
    """The same in training FLOPs."""
    precision: Annotated[RequestedPrecision, example("bf16")] = "auto"
    """bf16 (with float32 master weights) or fp32. auto: bf16 if the device is fast at it, else fp32."""
    log_every: Annotated[Count, example(50, "optimizer steps")] = 10
    """Steps between log lines."""

    @model_validator(mode="before")
    @classmethod
    def _batch_in_tokens(cls, data: Any) -> Any:
        """Computes batch_size from batch_tokens; if both are set, they must agree.

        A schedule that extends another one sets `batch_size: null` to count in tokens instead.
        """
        if not isinstance(data, dict) or data.get("batch_tokens") is None:
            return data
        data = {key: value for key, value in data.items() if key != "batch_size" or value is not None}
        own = {"batch_size": 1} | data  # if a value is wrong by itself, its field reports that
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
    """The learning-rate schedule: warm-up, then constant and linear decay (`wsd`) or a cosine."""

    peak: Annotated[PositiveFloat, example(6e-4, "pure number")]
    """The rate after the warm-up."""
    final: Annotated[NonNegativeFloat, example(6e-5, "pure number")] = 0.0
    """The rate at the end of the span."""
    shape: Annotated[RateShape, example("cosine")] = "wsd"
    """wsd: constant at `peak`, then a linear decay. cosine: half a cosine from `peak` to `final`."""
    span: Annotated[Literal["ladder", "stage"], example("stage")] = "ladder"
    """ladder: one warm-up before the first stage, one decay at the end of the last. stage: each stage has its own
    warm-up and decay (as in the paper)."""
    warmup_steps: Annotated[CountOrZero, example(2000, "optimizer steps")] = 0
    """Steps over which the rate rises linearly to `peak`: step k of N trains at k / N of it, so none at 0."""
    decay: Annotated[float, Field(ge=0.0, le=1.0), example(0.25, "share of the span")] = 0.2
    """Length of the decay, as a share of the span (`wsd`)."""
    batch_scaling: Annotated[BatchScaling, example("sqrt")] = "none"
    """How the rate follows the batch of a stage. Its factor is the stage's data tokens per step divided by those of
    `training`, to the power 0 (none), 1/2 (sqrt) or 1 (linear)."""


class EvaluationBlock(Block):
    """Validation during a stage. Every stage also ends with one over the same sequences, in float32."""

    every: Annotated[Count, example(1000, "optimizer steps")] = 500
    """Steps between evaluations."""
    max_sequences: Annotated[Count | None, example(1000, "sequences")] = None
    """Validation sequences per evaluation; by default all."""


class SamplesBlock(Block):
    """Texts that the model of every finished stage writes, for people to read. They do not affect training."""

    prompts: Annotated[list[Prompt], Field(max_length=16), example(["Once upon a time", ""])] = []
    """What the texts begin with; an empty prompt begins a new document. By default growctl writes no texts."""
    max_new_tokens: Annotated[Count, Field(le=1_000), example(100, "data tokens")] = 60
    """Tokens of each text, at most. The context length ends it too."""
    temperature: Annotated[float, Field(ge=0.0, le=100.0), example(0.7, "pure number")] = 0.8
    """0: always the likeliest token. Above, tokens are drawn, always with the same random numbers."""

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
    """Also keep every n-th checkpoint of a stage; by default none."""
    keep_trunk: Annotated[bool, example(False)] = True
    """Whether each stage whose learning rate decays (`wsd`) also saves and keeps the checkpoint right before the decay.
    A longer schedule continues from it."""
    check_space: Annotated[bool, example(False)] = True
    """Whether a run first checks that everything it will write fits on the disk, and does not start otherwise."""


class AnomaliesBlock(Block):
    """What happens after growctl rejects an update. It never applies an update whose gradient is not finite."""

    non_finite: Annotated[Action, example("rollback")] = "skip"
    """What to do if a gradient is not finite. skip: skip the step's data. rollback: return to a checkpoint and skip the
    data since then. stop: stop the run."""
    spikes: Annotated[Literal["ignore", Action], example("skip")] = "ignore"
    """What to do if a step's loss is far above the earlier ones: the same choices, or ignore to train on the step."""
    spike_z: Annotated[float, Field(gt=0.0, le=1e6), example(8.0, "robust standard deviations")] = 10.0
    """A loss is a spike if it exceeds the median of the last losses by this many robust standard deviations."""
    window: Annotated[int, Field(ge=8, le=100_000), example(128, "optimizer steps")] = 64
    """Steps whose losses give that median and deviation. No step is a spike until the warm-up and the ramp are over and
    the window is full."""
    most: Annotated[int, Field(ge=1, le=1_000_000), example(3, "steps or rollbacks")] = 10
    """Skipped steps in a row, or rollbacks to the same checkpoint, that are allowed. The run stops at the next one."""

    def policy(self) -> Anomalies:
        """Returns the worker's form of this block."""
        return Anomalies(**self.model_dump())


ControlKind = Literal[
    "tokenformer-scratch",
    "transformer-scratch",
    "best-scratch",
    "scratch-of-each-size",
    "single-jump",
    "official-growth",
]


class ControlBlock(Block):
    """A kind of run that growctl generates to compare the ladder with."""

    kind: Annotated[ControlKind, example("best-scratch")]
    """tokenformer-scratch: the last stage's size from scratch. transformer-scratch: the Transformer nearest to it in
    parameters, from scratch. best-scratch: every size of the ladder from scratch. scratch-of-each-size: the size of
    every finished model (`releases`) from scratch, at that model's own cost. single-jump: the first stage, then the
    last size in one growth. official-growth: the same ladder, grown as the official code grows it."""
    budgets: Annotated[
        list[Budget],
        Field(min_length=1),
        example([0.5, 1.0, 2.0], "multiples of FLOPs"),
    ] = [1.0]
    """FLOPs of the control, as multiples of the whole ladder's, for scratch-of-each-size of the finished model's; one
    run per entry. With three or more, the report can find the point of equal loss."""


TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]
TRACKERS = get_args(TrackerName)


def _known_tracker(name: Any) -> Any:
    if name in TRACKERS:
        return name
    hint = did_you_mean(name, TRACKERS) if isinstance(name, str) else ""
    raise ValueError(f"no such tracker{hint} (trackers: {', '.join(TRACKERS)})")


class Schedule(Block):
    """A growth schedule: everything that defines a run."""

    name: Annotated[Name | None, example("my-ladder")] = None
    """Name of the run; by default the file's name."""
    seed: Annotated[int, Field(ge=0, lt=2**32), example(1, "pure number")] = 0
    """Sets the initial values and the order of the data."""
    data: DataBlock
    model: ModelBlock
    start: StartBlock | None = None
    stages: Annotated[list[StageBlock], Field(min_length=1, max_length=MOST_STAGES)]
    training: TrainingBlock
    learning_rate: LearningRateBlock
    optimizer: OptimizerBlock = OptimizerBlock()
    growth: GrowthBlock = GrowthBlock()
    evaluation: EvaluationBlock = EvaluationBlock()
    samples: SamplesBlock = SamplesBlock()
    checkpoint: CheckpointBlock = CheckpointBlock()
    anomalies: AnomaliesBlock = AnomaliesBlock()
    releases: Annotated[Literal["all"] | None, example("all")] = None
    """all: every stage ends in a finished model, by a release where its learning rate has not decayed. By default only
    the stages with a `release` do."""
    controls: list[ControlBlock] = []
    trackers: Annotated[
        list[Annotated[TrackerName, BeforeValidator(_known_tracker, json_schema_input_type=TrackerName)]],
        example(["tensorboard", "wandb"]),
    ] = []
    """Experiment trackers that show the run too: tensorboard, wandb, mlflow, trackio (`pip install
    'growctl[tensorboard]'`, ...). Offline, unless your environment variables name a server. You may change this when
    you resume a run."""
    launch: LaunchBlock = LaunchBlock()

    def release_of(self, index: int) -> ReleaseBlock | None:
        """The release that the schedule asks for at the end of stage `index`; None if it asks for none.

        `releases: all` asks for one in every stage that does not say otherwise, even where the rate has decayed.
        """
        release = self.stages[index].release
        asked = self.releases == "all" if release is None else release
        return asked if isinstance(asked, ReleaseBlock) else ReleaseBlock() if asked else None

    @field_validator("trackers")
    @classmethod
    def _each_tracker_once(cls, names: list[TrackerName]) -> list[TrackerName]:
        if len(set(names)) < len(names):
            raise ValueError("must name each tracker once")
        return names

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        size = self.model.vocab_size or self.data.num_tokens
        assert size is not None
        return size

    @property
    def base(self) -> BaseBlock | None:
        """The checkpoint that the first stage starts from; None if it starts from a new model."""
        return self.start.base if self.start else None

    @property
    def base_flops(self) -> float | None:
        """Training FLOPs of the start checkpoint: 0 without one, None if its cost is not known."""
        return self.start.known_flops if self.start else 0.0

    @model_validator(mode="before")
    @classmethod
    def _official_rates(cls, data: Any) -> Any:
        """Gives every stage its own cosine under `growth.preset: official`, unless the schedule sets another."""
        growth = data.get("growth") if isinstance(data, dict) else None
        if (
            isinstance(growth, dict)
            and growth.get("preset") == "official"
            and isinstance(data.get("learning_rate"), dict)
        ):
            return data | {"learning_rate": {"shape": "cosine", "span": "stage"} | data["learning_rate"]}
        return data
