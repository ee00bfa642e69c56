"""Model configurations as data: sizes, generations, tau.

Imports no torch, so that plans start fast.

A configuration is frozen, validated and hashable; every checkpoint manifest contains one. Names follow Tokenformer
(arXiv 2410.23168): a Pattention holds parameter tokens. The parameter tokens that one growth adds are a generation.
"""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from model.parameter_names import EMBEDDING, FINAL_NORM, TOKEN_KINDS, TokensName, in_block
from model.strict import Strict

ScoreFunction = Literal["l2_norm_gelu", "gelu_l2_norm", "softmax"]

PositiveFinite = Annotated[float, Field(gt=0, allow_inf_nan=False)]

Kernels = Literal["eager", "compiled", "triton"]
"""How a model computes: `eager` runs operator by operator, `compiled` compiles each block, `triton` uses Triton kernels
for Pattention and the loss. Only `eager` computes the same bits in every process: the others time some of their kernels
and choose the fastest."""

PATTENTIONS = ("query", "key", "value", "projection", "ffn")
"""The five Pattentions of a block, in the order of the forward pass."""


def published_tau(score_function: ScoreFunction, num_tokens: float) -> float:
    """The tau of the published runs: sqrt(n) after an L2 norm, n after the softmax's L1 norm (official code)."""
    return num_tokens if score_function == "softmax" else math.sqrt(num_tokens)


class Generation(Strict):
    """The parameter tokens that one growth adds."""

    num_tokens: PositiveInt
    """Parameter tokens in this generation, n_g."""

    number: NonNegativeInt = 0
    """The number of the growth that added them, 0 for the base. Parameter names contain it."""

    key_ramp: float = Field(default=1.0, ge=0.0, le=1.0)
    """g: the factor on this generation's keys. 0 right after growth (its scores are zero), 1 once ramped in."""

    tau: PositiveFinite | None = None
    """The scale of its scores if it is normalised separately. None: it is normalised with the others, under the
    Pattention's tau."""

    copies: NonNegativeInt = 0
    """How many copies of all older tokens it consists of; the older values then count 1 / (1 + copies). 0: it has no
    copies."""

    tau_before: PositiveFinite | None = None
    """The Pattention's tau before this generation was added, which `shrink` restores. None for the oldest generation:
    that of the base or, in a block that a growth added, of that growth."""


class PattentionConfig(Strict):
    """One Pattention: its generations, oldest first, and its scale."""

    generations: tuple[Generation, ...] = Field(min_length=1)
    tau: PositiveFinite
    """The scale of the scores that are normalised together. It is stored, never recomputed from the shape."""

    @model_validator(mode="after")
    def _numbers_rise(self) -> Self:
        numbers = [generation.number for generation in self.generations]
        if numbers != sorted(set(numbers)):
            raise ValueError(f"generations are numbered {numbers}; each must be above the one before")
        return self

    @property
    def num_tokens(self) -> int:
        """Parameter tokens over all generations."""
        return sum(generation.num_tokens for generation in self.generations)

    @property
    def value_shares(self) -> tuple[float, ...]:
        """The factor on each generation's values: later copies of its tokens reduce it."""
        later = [1 + generation.copies for generation in self.generations[1:]] + [1]
        return tuple(1 / math.prod(later[i:]) for i in range(len(later)))


class BlockConfig(Strict):
    """The five Pattentions of one block."""

    query: PattentionConfig
    key: PattentionConfig
    value: PattentionConfig
    projection: PattentionConfig
    ffn: PattentionConfig

    @model_validator(mode="after")
    def _added_at_once(self) -> Self:
        first = {name: pattention.generations[0].number for name, pattention in self.pattentions().items()}
        if len(set(first.values())) > 1:
            raise ValueError(
                f"the oldest generations are {first}; one growth adds a whole block, so they must be equal"
            )
        return self

    def pattentions(self) -> dict[str, PattentionConfig]:
        """The block's Pattentions by name, in the order of the forward pass."""
        return {name: getattr(self, name) for name in PATTENTIONS}

    @property
    def generation(self) -> int:
        """The number of the growth that added the block, 0 for the base."""
        return self.query.generations[0].number


class _LanguageModelConfig(Strict):
    vocab_size: PositiveInt
    """Rows of the embedding, which is also the output head (tied)."""

    hidden_size: PositiveInt
    """Model width D. A Tokenformer's growth never changes it."""

    num_heads: PositiveInt

    rotary_fraction: float = Field(default=0.25, ge=0.0, le=1.0)
    """Share of each head's dimensions that the rotary embedding rotates; 0.25 in the official configuration. 0: the
    model has no position information."""

    rotary_base: PositiveFinite = 10000.0

    norm_epsilon: PositiveFinite = 1e-5

    document_end_id: NonNegativeInt | None = None
    """The token that ends a document, for a model that attends within documents only and counts positions from the
    start of each. None: it attends to everything before."""

    @property
    def head_width(self) -> int:
        """Width E of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def rotary_width(self) -> int:
        """Dimensions of each head that the rotary embedding rotates."""
        return int(self.head_width * self.rotary_fraction)

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} must be a multiple of num_heads {self.num_heads}")
        if self.rotary_fraction and (self.rotary_width < 2 or self.rotary_width % 2):
            raise ValueError(
                f"hidden_size {self.hidden_size} / num_heads {self.num_heads} x rotary_fraction "
                f"{self.rotary_fraction} rotates {self.rotary_width} dimensions; it must be an even number, 2 or more"
            )
        return self


class TokenformerConfig(_LanguageModelConfig):
    """A Tokenformer (arXiv 2410.23168, section 3; layout of the official code)."""

    family: Literal["tokenformer"] = "tokenformer"
    score_function: ScoreFunction = "l2_norm_gelu"
    blocks: tuple[BlockConfig, ...]
    """In the order of the forward pass. Without blocks, the model is its embedding and its final norm."""

    block_ids: tuple[NonNegativeInt, ...] = Field(
        default_factory=lambda data: tuple(range(len(data.get("blocks", ()))))
    )
    """The ids of the blocks, in the same order. Parameter names contain them, so growth in depth, which may put new
    blocks between old ones, changes no name. By default 0, 1, 2, ..."""

    @model_validator(mode="after")
    def _one_id_a_block(self) -> Self:
        if len(self.block_ids) != len(self.blocks) or len(set(self.block_ids)) < len(self.block_ids):
            ids = list(self.block_ids)
            raise ValueError(f"block_ids are {ids}; each of the {len(self.blocks)} blocks needs its own")
        return self

    @property
    def num_layers(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    @property
    def newest_generation(self) -> int:
        """The number of the newest generation, which is how often the model has grown."""
        numbers = (p.generations[-1].number for block in self.blocks for p in block.pattentions().values())
        return max(numbers, default=0)

    def block(self, block_id: int) -> BlockConfig:
        """The block with this id. Raises ValueError if the model has none."""
        return self.blocks[self.block_ids.index(block_id)]


class TransformerConfig(_LanguageModelConfig):
    """The Transformer baseline: pre-LayerNorm with gain and bias, GELU MLP, same rotary embedding, tied embeddings."""

    family: Literal["transformer"] = "transformer"
    num_layers: PositiveInt
    ffn_size: PositiveInt
    """Inner width of the MLP, usually 4 x hidden_size."""

    @property
    def block_ids(self) -> tuple[int, ...]:
        """The ids of the blocks, which are their numbers."""
        return tuple(range(self.num_layers))


ModelConfig = Annotated[TokenformerConfig | TransformerConfig, Field(discriminator="family")]


def tokenformer_config(
    *,
    num_layers: int,
    attention_tokens: int,
    ffn_tokens: int,
    projection_tokens: int | None = None,
    score_function: ScoreFunction = "l2_norm_gelu",
    **shape: Any,
) -> TokenformerConfig:
    """A Tokenformer with one generation and the published tau.

    Each of Q, K, V and O has `attention_tokens` parameter tokens; `projection_tokens` sets another number for O.
    `shape` holds the fields that both families share (`vocab_size`, `hidden_size`, `num_heads`, ...).
    """

    def pattention(num_tokens: int) -> PattentionConfig:
        return PattentionConfig(
            generations=(Generation(num_tokens=num_tokens),), tau=published_tau(score_function, num_tokens)
        )

    qkv, ffn = pattention(attention_tokens), pattention(ffn_tokens)
    projection = pattention(projection_tokens or attention_tokens)
    block = BlockConfig(query=qkv, key=qkv, value=qkv, projection=projection, ffn=ffn)
    return TokenformerConfig(score_function=score_function, blocks=(block,) * num_layers, **shape)


def parameter_shapes(config: TokenformerConfig | TransformerConfig) -> dict[str, tuple[int, ...]]:
    """The name and shape of every parameter, in the order of the built model's `named_parameters()`."""
    width = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, width)}
    for i, block_id in enumerate(config.block_ids):
        if isinstance(config, TokenformerConfig):
            for name, pattention in config.blocks[i].pattentions().items():
                for kind in TOKEN_KINDS:
                    for g in pattention.generations:
                        shapes[str(TokensName(block_id, name, kind, g.number))] = (g.num_tokens, width)
        else:
            sizes = {"attention_input": (3 * width, width), "projection": (width, width)}
            sizes |= {"ffn_input": (config.ffn_size, width), "ffn_output": (width, config.ffn_size)}
            for norm in ("attention_norm", "ffn_norm"):
                shapes |= dict.fromkeys((in_block(i, f"{norm}.{part}") for part in ("weight", "bias")), (width,))
            for name, size in sizes.items():
                shapes |= {in_block(i, f"{name}.weight"): size, in_block(i, f"{name}.bias"): size[:1]}
    return shapes | {f"{FINAL_NORM}.weight": (width,), f"{FINAL_NORM}.bias": (width,)}


def parameter_shape(name: str, config: TokenformerConfig | TransformerConfig) -> tuple[int, ...]:
    """The shape of parameter `name`.

    Parameter tokens are looked up directly, so the time to draw a growth is linear in the number of added parameters.
    """
    tokens = TokensName.parse(name)
    if isinstance(config, TokenformerConfig) and tokens:
        generations = config.block(tokens.block).pattentions()[tokens.pattention].generations
        return next((g.num_tokens, config.hidden_size) for g in generations if g.number == tokens.generation)
    return parameter_shapes(config)[name]


def num_parameters(config: TokenformerConfig | TransformerConfig) -> int:
    """The number of parameters. The tied embedding counts once."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())
