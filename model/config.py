"""What a model is made of, as data: sizes, generations, tau. No torch here, so that plans start fast.

A configuration is frozen, validated and hashable; it travels in every checkpoint manifest. Names follow
Tokenformer (arXiv 2410.23168): a Pattention holds parameter tokens, those added together are a generation.
"""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from model.parameter_names import EMBEDDING, FINAL_NORM, TOKEN_KINDS, TokensName, in_block
from model.strict import Strict

ScoreFunction = Literal["l2_norm_gelu", "gelu_l2_norm", "softmax"]

Kernels = Literal["eager", "compiled", "triton"]
"""How a model is computed: operator by operator; each block compiled; with Triton's kernels for Pattention and loss.
Only eager computes the same bits in every process: the others choose some of their kernels by timing them."""

PATTENTIONS = ("query", "key", "value", "projection", "ffn")
"""The five Pattentions of a block, in the order of the forward pass."""


def published_tau(score_function: ScoreFunction, num_tokens: float) -> float:
    """The scale of the published runs: sqrt(n) after an L2 norm, n after the softmax's L1 norm (official code)."""
    return num_tokens if score_function == "softmax" else math.sqrt(num_tokens)


class Generation(Strict):
    """The parameter tokens that were added together at one growth."""

    num_tokens: PositiveInt
    """Parameter tokens in this generation, n_g."""

    number: NonNegativeInt = 0
    """Which growth of the model added them, 0 for the base: the number in the parameters' names."""

    key_ramp: float = Field(default=1.0, ge=0.0, le=1.0)
    """g: the factor on this generation's keys. 0 right after growth (its scores are zero), 1 once ramped in."""

    tau: PositiveFloat | None = None
    """The scale of its scores where it is normalised by itself; None: with the others, under the Pattention's tau."""

    copies: NonNegativeInt = 0
    """How many copies of all older tokens it is, which then count for 1 / (1 + copies) of their values; 0: none."""

    tau_before: PositiveFloat | None = None
    """The Pattention's tau when this generation was added, to which `shrink` goes back; None for the base."""


class PattentionConfig(Strict):
    """One Pattention: its generations, oldest first, and its scale."""

    generations: tuple[Generation, ...] = Field(min_length=1)
    tau: PositiveFloat
    """The scale of the scores that are normalised together. Data, never recomputed from the shape."""

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
        """The factor on each generation's values: what later copies of its tokens have left it."""
        later = [1 + generation.copies for generation in self.generations[1:]] + [1]
        return tuple(1 / math.prod(later[i:]) for i in range(len(later)))


class BlockConfig(Strict):
    """The five Pattentions of one block."""

    query: PattentionConfig
    key: PattentionConfig
    value: PattentionConfig
    projection: PattentionConfig
    ffn: PattentionConfig

    def pattentions(self) -> dict[str, PattentionConfig]:
        """The block's Pattentions by name, in the order of the forward pass."""
        return {name: getattr(self, name) for name in PATTENTIONS}


class _LanguageModelConfig(Strict):
    vocab_size: PositiveInt
    """Rows of the embedding, which is also the output head (tied)."""

    hidden_size: PositiveInt
    """Model width D. A Tokenformer's growth never changes it."""

    num_heads: PositiveInt

    rotary_fraction: float = Field(default=0.25, ge=0.0, le=1.0)
    """Share of each head's dimensions that is rotated (the official configuration: 0.25). 0: no positions at all."""

    rotary_base: PositiveFloat = 10000.0

    norm_epsilon: PositiveFloat = 1e-5

    @property
    def head_width(self) -> int:
        """Width E of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def rotary_width(self) -> int:
        """Dimensions of each head that the rotary embedding turns."""
        return int(self.head_width * self.rotary_fraction)

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} must be a multiple of num_heads {self.num_heads}")
        if self.rotary_fraction and (self.rotary_width < 2 or self.rotary_width % 2):
            raise ValueError(
                f"hidden_size {self.hidden_size} / num_heads {self.num_heads} x rotary_fraction "
                f"{self.rotary_fraction} turns {self.rotary_width} dimensions; it must be an even number, 2 or more"
            )
        return self


class TokenformerConfig(_LanguageModelConfig):
    """A Tokenformer (arXiv 2410.23168, section 3; layout of the official code)."""

    family: Literal["tokenformer"] = "tokenformer"
    score_function: ScoreFunction = "l2_norm_gelu"
    blocks: tuple[BlockConfig, ...] = Field(min_length=1)

    @property
    def num_layers(self) -> int:
        """Blocks."""
        return len(self.blocks)

    @property
    def newest_generation(self) -> int:
        """The highest number of any generation: how often the model was grown."""
        return max(p.generations[-1].number for block in self.blocks for p in block.pattentions().values())


class TransformerConfig(_LanguageModelConfig):
    """The baseline: pre-LayerNorm with gain and bias, GELU MLP, the same rotary embedding, tied embeddings."""

    family: Literal["transformer"] = "transformer"
    num_layers: PositiveInt
    ffn_size: PositiveInt
    """Inner width of the MLP, 4 x hidden_size unless there is a reason."""


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
    """A Tokenformer of one generation and the published tau.

    `attention_tokens` go to each of Q, K, V, and to O unless `projection_tokens` says otherwise; `shape` holds the
    fields that both families share (`vocab_size`, `hidden_size`, `num_heads`, ...).
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
    """Every parameter's name and shape, in the order of the built model's `named_parameters()`."""
    width = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, width)}
    for i in range(config.num_layers):
        if isinstance(config, TokenformerConfig):
            for name, pattention in config.blocks[i].pattentions().items():
                for kind in TOKEN_KINDS:
                    for generation in pattention.generations:
                        shapes[str(TokensName(i, name, kind, generation.number))] = (generation.num_tokens, width)
        else:
            sizes = {"attention_input": (3 * width, width), "projection": (width, width)}
            sizes |= {"ffn_input": (config.ffn_size, width), "ffn_output": (width, config.ffn_size)}
            for norm in ("attention_norm", "ffn_norm"):
                shapes |= {in_block(i, f"{norm}.weight"): (width,), in_block(i, f"{norm}.bias"): (width,)}
            for name, size in sizes.items():
                shapes |= {in_block(i, f"{name}.weight"): size, in_block(i, f"{name}.bias"): size[:1]}
    return shapes | {f"{FINAL_NORM}.weight": (width,), f"{FINAL_NORM}.bias": (width,)}


def num_parameters(config: TokenformerConfig | TransformerConfig) -> int:
    """Parameters in all, the tied embedding counted once."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())
