"""What the configurations of both model families share: sizes, attention, images.

Imports no torch, so that plans start fast.

A configuration is frozen, validated and hashable; every checkpoint manifest contains one.
"""

import math
from abc import abstractmethod
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from model.strict import Strict, example

PositiveFinite = Annotated[float, Field(gt=0, allow_inf_nan=False)]

Kernels = Literal["eager", "compiled", "triton"]
"""How a model computes: `eager` runs operator by operator, `compiled` compiles each block, `triton` uses Triton kernels
for Pattention and the loss. Only `eager` is known to compute the same bits in every process: the compiler times some
kernels and chooses the fastest."""

Norm = Literal["layernorm", "rmsnorm"]


class AnyBlockConfig(Strict):
    """A block of either family."""

    @property
    @abstractmethod
    def generations(self) -> tuple[int, ...]:
        """The numbers of the growths that the block's parameters come from, the one that added the block first."""

    @property
    def generation(self) -> int:
        """The number of the growth that added the block, 0 for the base."""
        return self.generations[0]


class RotaryScaling(Strict):
    """How rotary frequencies change for a sequence of `factor` times `trained_length` tokens.

    - `linear`: position interpolation (arXiv 2306.15595). All frequencies are divided by the factor.
    - `llama3`: Llama 3.1's. Frequencies that turn less than `low_turns` times in `trained_length` are divided by the
      factor, those that turn more than `high_turns` times stay, with a linear ramp in between.
    - `ntk`: NTK-aware scaling. The base grows by factor^(R / (R - 2)), so that the slowest frequency is divided by the
      factor and the fastest stays.
    - `yarn`: YaRN (arXiv 2309.00071). Slow frequencies are divided by the factor, fast ones stay, with a linear
      ramp in between; the attention logits are multiplied by (0.1 ln(factor) + 1)^2.
    """

    kind: Literal["linear", "llama3", "ntk", "yarn"]
    factor: PositiveFinite
    """The length to read / `trained_length`."""

    trained_length: PositiveInt
    """Tokens of a training sequence, before it was scaled."""

    low_turns: PositiveFinite = 1.0
    high_turns: PositiveFinite = 4.0

    @model_validator(mode="after")
    def _turns_rise(self) -> Self:
        if self.high_turns <= self.low_turns:
            raise ValueError(f"high_turns is {self.high_turns:g}; it must be above low_turns, {self.low_turns:g}")
        return self

    @property
    def logit_factor(self) -> float:
        """The factor on attention logits, which is 1 / temperature."""
        return (0.1 * math.log(self.factor) + 1.0) ** 2 if self.kind == "yarn" else 1.0


class ImageInput(Strict):
    """Square images, cut into square patches. Each patch is a data token (ViT, arXiv 2010.11929)."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    size: Annotated[PositiveInt, example(224, "pixels")]
    """Height and width of an image."""
    patch: Annotated[PositiveInt, example(16, "pixels")]
    """Height and width of a patch; must divide `size`."""
    channels: Annotated[Literal[1, 3], example(1)] = 3
    """3 for RGB, 1 for greyscale."""
    pooling: Annotated[Literal["class_token", "mean"], example("mean")] = "class_token"
    """Which output of the final norm the output head reads. class_token: that of a learned data token before the
    patches. mean: the mean over all patches."""

    @property
    def num_patches(self) -> int:
        """Patches of an image."""
        return (self.size // self.patch) ** 2

    @property
    def sequence_length(self) -> int:
        """Data tokens of an image: its patches and, if it has one, the class token."""
        return self.num_patches + (self.pooling == "class_token")

    @property
    def patch_values(self) -> int:
        """Numbers that a patch consists of, C P^2."""
        return self.channels * self.patch**2

    @model_validator(mode="after")
    def _patches_fit(self) -> Self:
        if self.size % self.patch:
            raise ValueError(f"size {self.size} must be a multiple of patch {self.patch}")
        return self


class LanguageModelConfig(Strict):
    """What both families have."""

    image: ImageInput | None = Field(default=None, exclude_if=lambda image: image is None)
    """The images that the model classifies. None: it reads text. A model of images attends to the whole image, has
    learned positions, and has a head with a bias and weights of its own."""

    vocab_size: PositiveInt
    """Rows of the embedding and of the output head; for images, the number of classes."""

    hidden_size: PositiveInt
    """Model width D. Only widening a decoder changes it."""

    num_heads: PositiveInt
    """Query heads."""

    num_kv_heads: PositiveInt = Field(default_factory=lambda data: data.get("num_heads", 1))
    """Heads of keys and values. Each serves a group of num_heads / num_kv_heads query heads (arXiv 2305.13245)."""

    head_width: PositiveInt = Field(
        default_factory=lambda data: max(1, data.get("hidden_size", 1) // data.get("num_heads", 1))
    )
    """Width E of one attention head; by default D / num_heads."""

    norm: Norm = "layernorm"
    """The norms of the residual stream: LayerNorm, or RMSNorm (arXiv 1910.07467) without a mean and without biases."""

    norm_epsilon: PositiveFinite = 1e-5

    qk_norm: bool = False
    """Whether queries and keys get an RMSNorm over each head before they are rotated (arXiv 2302.05442)."""

    tie_embeddings: bool = Field(default_factory=lambda data: data.get("image") is None)
    """Whether the embedding is the output head too."""

    rotary_fraction: float = Field(
        default_factory=lambda data: 0.25 if data.get("image") is None else 0.0, ge=0.0, le=1.0
    )
    """Share of each head's dimensions that the rotary embedding rotates; 0.25 in the official configuration. 0: a
    model of text has no position information."""

    rotary_base: PositiveFinite = 10000.0

    rotary_scaling: RotaryScaling | None = None
    """The scaling that the model was trained with. None: none."""

    document_end_id: NonNegativeInt | None = None
    """The token that ends a document, for a model that attends within documents only and counts positions from the
    start of each. None: it attends to everything before."""

    attention_window: PositiveInt | None = Field(default=None, exclude_if=lambda window: window is None)
    """How many positions a token attends to, its own and those before it (Mistral, arXiv 2310.06825). None: all."""

    full_attention_every: Annotated[int, Field(ge=2)] | None = Field(
        default=None, exclude_if=lambda every: every is None
    )
    """Every so many layers, one attends to all positions despite the window: layer i if n divides i + 1, where i is the
    block's id, so that growth in depth changes no old layer. None: no layer does."""

    blocks: tuple[AnyBlockConfig, ...]
    """In the order of the forward pass. Without blocks, the model is its embedding, its final norm and its head."""

    block_ids: tuple[NonNegativeInt, ...] = Field(
        default_factory=lambda data: tuple(range(len(data.get("blocks", ()))))
    )
    """The ids of the blocks, in the same order. Parameter names contain them, so growth in depth, which may put new
    blocks between old ones, changes no name. By default 0, 1, 2, ..."""

    @property
    def num_layers(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    @property
    def newest_generation(self) -> int:
        """The number of the newest generation, which is how often the model has grown."""
        return max((number for block in self.blocks for number in block.generations), default=0)

    @property
    def rotary_width(self) -> int:
        """Dimensions of each head that the rotary embedding rotates."""
        return int(self.head_width * self.rotary_fraction)

    def windows(self, length: float) -> tuple[int | None, ...]:
        """By block, how many positions a token attends to in a sequence of `length`; None: all before it."""
        every, window = self.full_attention_every, self.attention_window
        own = window if window and window < length else None
        return tuple(None if every and (block_id + 1) % every == 0 else own for block_id in self.block_ids)

    @model_validator(mode="after")
    def _only_text_has_these(self) -> Self:
        without: dict[str, Any] = {"tie_embeddings": False, "rotary_fraction": 0.0}
        without |= dict.fromkeys(("rotary_scaling", "document_end_id", "attention_window", "full_attention_every"))
        for name, value in without.items() if self.image else ():
            if getattr(self, name) != value:
                raise ValueError(f"{name} is {getattr(self, name)}; a model of images needs {value}, its default")
        return self

    @model_validator(mode="after")
    def _one_id_a_block(self) -> Self:
        if len(self.block_ids) != len(self.blocks) or len(set(self.block_ids)) < len(self.block_ids):
            ids = list(self.block_ids)
            raise ValueError(f"block_ids are {ids}; each of the {len(self.blocks)} blocks needs its own")
        return self

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if "head_width" not in self.model_fields_set and self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} must be a multiple of num_heads {self.num_heads}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} must be a multiple of num_kv_heads {self.num_kv_heads}")
        if self.rotary_fraction and (self.rotary_width < 2 or self.rotary_width % 2):
            raise ValueError(
                f"heads of {self.head_width} dimensions x rotary_fraction {self.rotary_fraction} rotates "
                f"{self.rotary_width} dimensions; it must be an even number, 2 or more"
            )
        return self
