"""The pydantic models of a growth schedule: its blocks, their keys and allowed values.

growctl/ladder/checks.py rejects bad combinations, after pydantic has accepted every single value.
"""

import math
from contextlib import suppress
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, PositiveFloat, model_validator
from pydantic.json_schema import SkipJsonSchema

from growctl.schedule.data_block import DataBlock, FollowedWeights, Weights
from growctl.schedule.fields import Block, Count
from growctl.schedule.launch_block import LaunchBlock
from growctl.schedule.start_block import BaseBlock, StartBlock
from growctl.schedule.training_blocks import (
    CheckpointBlock,
    EvaluationBlock,
    GrowthBlock,
    LearningRateBlock,
    OptimizerBlock,
    SamplesBlock,
    TrainingBlock,
)
from model.config import ImageInput, Norm, RotaryScaling
from model.decoder_config import Activation
from model.strict import example
from model.tokenformer_config import Routing, ScoreFunction
from stages.spec import Anomalies

MOST_STAGES = 32
"""More than any ladder needs: 31 doublings would grow even a model of 1k parameters to 2T."""
Width = Annotated[int, Field(gt=0, le=2**20)]
NumLayers = Annotated[int, Field(ge=0, le=1000)]
Depth = Annotated[int, Field(gt=0, le=1000)]
LayerNumber = Annotated[int, Field(ge=0, le=999)]
Budget = Annotated[float, Field(ge=0.001, le=1000.0)]
Peak = Annotated[float, Field(ge=0.01, le=100.0)]
StageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$")]
"""Like RUN_NAME, but as long as files allow: a control's name adds its kind, a stage, a budget and a peak."""

SHARED_KEYS = (
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_width",
    "norm",
    "norm_epsilon",
    "qk_norm",
    "tie_embeddings",
    "rotary_fraction",
    "rotary_base",
    "rotary_scaling",
    "attention_window",
    "full_attention_every",
)
"""Keys of `model` that are fields of both families' configurations."""
DECODER_KEYS = ("activation", "parallel_residual", "qkv_bias", "output_bias", "ffn_bias")
"""Those of a decoder's alone."""


class RotaryScalingBlock(Block):
    """Scaling of the rotary frequencies, as in some imported models."""

    kind: Annotated[Literal["linear", "llama3"], example("llama3")]
    """linear: divides all frequencies by `factor`. llama3: divides only the low ones."""
    factor: Annotated[PositiveFloat, example(8.0, "pure number")]
    """Divisor of the frequencies."""
    trained_length: Annotated[Count, example(8192, "data tokens")]
    """Context length that training used before the scaling, in data tokens."""
    low_turns: Annotated[PositiveFloat, example(1.0, "turns in trained_length")] = 1.0
    """With `llama3`, frequencies with fewer turns than this in `trained_length` tokens are divided by `factor`."""
    high_turns: Annotated[PositiveFloat, example(4.0, "turns in trained_length")] = 4.0
    """With `llama3`, frequencies with more turns than this in `trained_length` tokens stay unchanged."""


class ModelBlock(Block):
    """Settings of the model; stages may change its sizes."""

    family: Annotated[Literal["tokenformer", "decoder"], example("tokenformer")] = "tokenformer"
    """tokenformer: Pattentions in place of linear layers. decoder: linear layers, as in GPT-NeoX or Llama."""
    num_layers: Annotated[NumLayers, example(12, "layers")]
    """Number of layers, until a stage changes it. With 0, a tokenformer is only the embedding, the final norm
    and the output head."""
    hidden_size: Annotated[Width, example(768, "dimensions")]
    """Width of the model (the residual stream)."""
    num_heads: Annotated[Width, example(4, "heads")]
    """Number of attention heads; must divide `hidden_size` unless `head_width` is set."""
    num_kv_heads: Annotated[Width | None, example(2, "heads")] = None
    """Number of key-value heads, each shared by a group of attention heads; by default `num_heads`, which it must
    divide."""
    head_width: Annotated[Width | None, example(64, "dimensions")] = None
    """Width of a head; by default `hidden_size` / `num_heads`."""
    norm: Annotated[Norm, example("rmsnorm")] = "layernorm"
    """Type of the norms in the residual stream."""
    norm_epsilon: Annotated[PositiveFloat, example(1e-6, "pure number")] = 1e-5
    """Epsilon of the norms, added under the square root."""
    qk_norm: Annotated[bool, example(True)] = False
    """Whether queries and keys get an RMSNorm over each head."""
    tie_embeddings: Annotated[bool, example(False)] = True
    """Whether the output head shares the embedding's weights."""
    ffn_tokens: Annotated[Count | None, example(3072, "units")] = None
    """Units of a decoder's FFN, until a stage changes their number. A new decoder needs
    this, here or in its first stage."""
    activation: Annotated[Activation, example("swiglu")] = "gelu"
    """Activation of a decoder's FFN; `swiglu` adds a third matrix, the gate."""
    parallel_residual: Annotated[bool, example(True)] = False
    """Whether a decoder's attention and FFN read the same input, as in GPT-NeoX."""
    qkv_bias: Annotated[bool, example(False)] = True
    """Whether a decoder's queries, keys and values have biases."""
    output_bias: Annotated[bool, example(False)] = True
    """Whether the output of a decoder's attention has a bias."""
    ffn_bias: Annotated[bool, example(False)] = True
    """Whether a decoder's FFN has biases."""
    vocab_size: Annotated[Count | None, example(50_432, "rows")] = None
    """Rows of the embedding; by default `data.vocab_size` or, for a prepared dataset, the entries of its tokenizer.
    Required with `data.tokenizer`. Not for images."""
    score_function: Annotated[ScoreFunction, example("gelu_l2_norm")] = "l2_norm_gelu"
    """How a Pattention turns scores into weights of values. l2_norm_gelu: L2 norm, then GELU. gelu_l2_norm: GELU, then
    L2 norm. softmax: softmax; only `growth.init` zero-value and copy then preserve the function."""
    routing: Annotated[
        Routing | None, Field(exclude_if=lambda routing: routing is None), example({"groups": 8, "read": 2})
    ] = None
    """Lets each data token read only some of the first stage's parameter tokens. By default it reads all."""
    rotary_fraction: Annotated[float, Field(ge=0.0, le=1.0), example(0.5, "share of a head's dimensions")] = 0.25
    """Share of a head's dimensions that the rotary embedding rotates. With 0, the model does not see positions."""
    rotary_base: Annotated[PositiveFloat, example(500_000.0, "pure number")] = 10000.0
    """Base of the rotary embedding's wavelengths; a larger base suits longer contexts."""
    rotary_scaling: Annotated[
        RotaryScalingBlock | None, example({"kind": "linear", "factor": 4.0, "trained_length": 2048})
    ] = None
    """Scaling of the rotary embedding; by default none."""
    attention_window: Annotated[
        Count | None, Field(exclude_if=lambda window: window is None), example(256, "data tokens")
    ] = None
    """How many tokens a token attends to: itself and the nearest before it. Only `compiled` and
    `triton` kernels on a GPU skip older tokens (FlexAttention); elsewhere a mask hides them, which saves no time."""
    full_attention_every: Annotated[
        int | None, Field(ge=2, le=1000, exclude_if=lambda every: every is None), example(4, "layers")
    ] = None
    """With `attention_window`: every n-th layer attends to all earlier tokens. 4 means
    layers 3, 7, ..., counted from 0. A layer that growth adds gets the next number, wherever it is placed."""
    image: Annotated[ImageInput | None, Field(exclude_if=lambda image: image is None)] = None
    """Makes this a model of images. It attends to all patches of an image at once, learns position embeddings in place
    of rotary ones, and has an output head of its own."""

    def shared(self) -> dict[str, Any]:
        """Its values for `model.config`: those that both families have and, of a decoder, its own."""
        keys = SHARED_KEYS if self.family == "tokenformer" else SHARED_KEYS + DECODER_KEYS
        given = {key: value for key in keys if (value := getattr(self, key)) is not None}
        if self.image:
            return given | {"image": self.image, "tie_embeddings": False, "rotary_fraction": 0.0}
        scaling = {"rotary_scaling": RotaryScaling(**self.rotary_scaling.model_dump())} if self.rotary_scaling else {}
        return given | scaling


class ReleaseBlock(Block):
    """How the learning rate of a release decays."""

    decay: Annotated[float, Field(gt=0.0, le=1.0), example(0.2, "share of the stage's steps")] = 0.1
    """Length of the release as a share of its stage's steps."""


class StageBlock(Block):
    """One stage: a size, trained for a budget."""

    name: Annotated[StageName, example("354m")]
    """Name of the stage in paths and tables; unique in the ladder."""
    attention_tokens: Annotated[Count | None, example(1024, "parameter tokens")] = None
    """Parameter tokens in each of Q, K, V and O. A new Tokenformer's first stage needs this
    and `ffn_tokens`."""
    ffn_tokens: Annotated[Count | None, example(4096, "parameter tokens")] = None
    """Parameter tokens in the FFN, or a decoder's FFN units; by default unchanged, but a decoder's units grow with
    `hidden_size`."""
    layers: Annotated[list[LayerNumber] | None, example([0, 1], "numbers of layers")] = None
    """Layers that gain tokens in this stage, numbered from 0; by default all. Not together with `num_layers`."""
    num_layers: Annotated[NumLayers | None, example(24, "layers")] = None
    """Number of layers from this stage on. `growth.depth` says where new layers go and how they
    start."""
    hidden_size: Annotated[Width | None, example(1024, "dimensions")] = None
    """Width of a decoder from this stage on: a multiple of the width before. The number of heads grows by the same
    factor."""
    num_heads: Annotated[Width | None, example(16, "heads")] = None
    """Number of a decoder's attention heads from this stage on; by default it grows only with `hidden_size`. Heads that
    share keys and values are added as whole groups."""
    train_tokens: Annotated[Count | None, example("1.4B", "data tokens")] = None
    """Budget in data tokens, rounded to whole steps. Set this, `train_steps` or `until`."""
    train_steps: Annotated[Count | None, example(20_000, "optimizer steps")] = None
    """Budget in optimizer steps."""
    until: Annotated[float | None, Field(gt=0.0, le=1.0), example(0.8, "share of the ladder's budget")] = None
    """Share of the ladder's budget, `training.ladder_tokens` or `ladder_flops`, at which the stage ends. With such a
    budget, all stages but the last need `until`, which must rise from stage to stage."""
    batch_size: Annotated[Count | None, example(256, "sequences")] = None
    """Sequences per optimizer step, over all devices; by default `training.batch_size`. If the stage sets only
    `sequence_length`, its batch size changes to keep `training`'s data tokens per step."""
    sequence_length: Annotated[Count | None, example(256, "data tokens")] = None
    """Context length; by default `training.sequence_length`. It must divide the longest context of the ladder."""
    ramp_steps: Annotated[Count | None, example(400, "optimizer steps")] = None
    """Steps in which the ramp of the new keys rises to 1 or, with `growth.tau: anneal`, tau moves to its new value.
    By default `growth.ramp` or `growth.anneal` times the stage's steps. If you extend a stage, set this to the earlier
    value."""
    mixture: Annotated[Weights | None, Field(min_length=1), example({"books": 1, "code": 3}, "pure number")] = None
    """Weights of the sources in this stage; by default those in `data.mixture`. A source with weight 0 or none is
    not read."""
    followed: Annotated[
        SkipJsonSchema[list[FollowedWeights] | None], Field(exclude_if=lambda followed: followed is None)
    ] = None
    """In place of `mixture`, for a control: the weights of its ladder's stages, at the same shares of its own steps.
    growctl writes it; users leave it out."""
    release: Annotated[bool | ReleaseBlock | None, example({"decay": 0.2})] = None
    """Whether the stage gets a release, which finishes its model; by default `releases` decides."""


ControlKind = Literal[
    "tokenformer-scratch",
    "decoder-scratch",
    "best-scratch",
    "scratch-of-each-size",
    "single-jump",
    "official-growth",
    "ungrown",
]


class ControlBlock(Block):
    """Runs of one kind, which growctl generates and compares with the ladder."""

    kind: Annotated[ControlKind, example("best-scratch")]
    """What these runs train (table in docs/schedules.md)."""
    budgets: Annotated[list[Budget], Field(min_length=1), example([0.5, 1.0, 2.0], "multiples of FLOPs")] = [1.0]
    """The control trains for each of these multiples of the ladder's FLOPs (scratch-of-each-size: of each finished
    model's FLOPs)."""
    peaks: Annotated[list[Peak], Field(min_length=1), example([0.5, 1.0, 2.0], "multiples of learning_rate.peak")] = [
        1.0
    ]
    """Peak learning rates to try; 1 must be among them. All are tried at the budget nearest to 1; the other budgets use
    the best peak. Not for single-jump or official-growth."""
    depths: Annotated[list[Depth], example([8, 16], "layers")] = []
    """For best-scratch: also train the last size with each of these numbers of layers."""


TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]


class StageBatch(NamedTuple):
    """What one optimizer step of a stage reads."""

    batch_size: int
    """Sequences, over all devices."""

    sequence_length: int
    """The stage's context, in data tokens."""

    @property
    def tokens(self) -> int:
        """Data tokens of one step."""
        return self.batch_size * self.sequence_length


class Schedule(Block):
    """A growth schedule: everything that defines a run."""

    name: Annotated[Name | None, example("my-ladder")] = None
    """Name of the run; by default the file's name."""
    seed: Annotated[int, Field(ge=0, lt=2**32), example(1, "pure number")] = 0
    """Seed of the initial weights and the order of the data."""
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
    anomalies: Anomalies = Anomalies()
    releases: Annotated[Literal["all"] | None, example("all")] = None
    """all: a release finishes the model of every stage that ends before the learning rate decays. By default only
    stages with a `release` key get one."""
    controls: list[ControlBlock] = []
    trackers: Annotated[list[TrackerName], example(["tensorboard", "wandb"])] = []
    """Experiment trackers that also show the run. Each needs the extra of its name (`pip install 'growctl[wandb]'`) and
    works offline unless your environment variables say otherwise. You may change this when you resume a run."""
    launch: LaunchBlock = LaunchBlock()

    def release_of(self, index: int) -> ReleaseBlock | None:
        """The release that the schedule asks for at the end of stage `index`; None if it asks for none.

        `releases: all` asks for one in every stage that does not say otherwise, even where the rate has decayed.
        """
        release = self.stages[index].release
        asked = self.releases == "all" if release is None else release
        return asked if isinstance(asked, ReleaseBlock) else ReleaseBlock() if asked else None

    def batch_of(self, index: int) -> StageBatch:
        """The batch and the context of stage `index`: what it leaves out is `training`'s.

        A stage that sets only `sequence_length` keeps `training`'s data tokens per step. Values that do not fit
        together are rounded down: growctl/ladder/checks.py reports them.
        """
        stage, training = self.stages[index], self.training
        length = stage.sequence_length or training.sequence_length
        if stage.batch_size is not None:
            return StageBatch(stage.batch_size, length)
        return StageBatch(max(1, training.batch_size * training.sequence_length // length), length)

    def batch_key(self, index: int) -> str:
        """The dotted path of the key that says how many sequences a step of stage `index` reads."""
        own = [key for key in ("batch_size", "sequence_length") if getattr(self.stages[index], key) is not None]
        return f"stages.{index}.{own[0]}" if own else "training.batch_size"

    def weights_of(self, index: int) -> list[tuple[int, dict[str, float]]]:
        """(step of stage `index`, weights of the sources from there on): one entry, unless a control follows several
        stages. Empty without a mixture."""
        stage = self.stages[index]
        if not self.data.mixture:
            return []
        if stage.followed:
            return [(each.first_step, each.weights) for each in stage.followed]
        return [(0, stage.mixture or self.data.base_weights)]

    @property
    def shared_batch(self) -> int:
        """The largest number of sequences that divides the batch of every stage. Any number of ranks that divides it
        can train them all."""
        return math.gcd(*(self.batch_of(index).batch_size for index in range(len(self.stages))))

    @property
    def contexts(self) -> list[int]:
        """The contexts of the stages, each once, ascending."""
        return sorted({self.batch_of(index).sequence_length for index in range(len(self.stages))})

    @property
    def longest_context(self) -> int:
        """The longest context of any stage, in data tokens. The order of the data is defined on windows of this
        length."""
        return self.contexts[-1]

    @property
    def evaluation_length(self) -> int:
        """The context at which the validation loss of every stage is measured, so that losses compare: the last
        stage's."""
        return self.batch_of(len(self.stages) - 1).sequence_length

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

    @model_validator(mode="before")
    @classmethod
    def _context_of_images(cls, data: Any) -> Any:
        """The context of a model of images is one image, so that a schedule may leave it out."""
        blocks: list[Any] = [data.get(key) for key in ("model", "data", "training")] if isinstance(data, dict) else []
        if not blocks or not all(isinstance(block, dict) for block in blocks):
            return data
        image, images = blocks[0].get("image"), blocks[1].get("images")
        length = 1  # of an image that is wrong or missing, whose own error says more
        with suppress(ValueError):
            length = ImageInput.model_validate(image).sequence_length
        return data | {"training": {"sequence_length": length} | blocks[2]} if image or images else data
