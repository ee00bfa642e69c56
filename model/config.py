"""What a model is made of, as data: sizes, generations, tau. No torch here, so that plans start fast.

A configuration is frozen, validated and hashable; it travels in every checkpoint manifest. Names follow
Tokenformer (arXiv 2410.23168): a Pattention holds parameter tokens, those added together are a generation.
"""

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    model_validator,
)

ScoreFunction = Literal["l2_norm_gelu", "gelu_l2_norm", "softmax"]

PATTENTIONS = ("query", "key", "value", "projection", "ffn")
"""The five Pattentions of a block, in the order of the forward pass."""

_GENERATION = re.compile(r"\.(?:key|value)_tokens\.(\d+)$")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def published_tau(score_function: ScoreFunction, num_tokens: float) -> float:
    """The scale of the published runs: sqrt(n) after an L2 norm, n after the softmax's L1 norm (official code)."""
    return num_tokens if score_function == "softmax" else math.sqrt(num_tokens)


class Generation(_Frozen):
    """The parameter tokens that were added together at one growth."""

    num_tokens: PositiveInt
    """Parameter tokens in this generation, n_g."""

    number: NonNegativeInt = 0
    """Which growth of the model added them, 0 for the base: the number in the parameters' names."""

    key_ramp: float = Field(default=1.0, ge=0.0, le=1.0)
    """g: the factor on this generation's keys. 0 right after growth (its scores are zero), 1 once ramped in."""


class PattentionConfig(_Frozen):
    """One Pattention: its generations, oldest first, and its scale."""

    generations: tuple[Generation, ...] = Field(min_length=1)
    tau: PositiveFloat
    """The scale of the normalised scores. Data, never recomputed from the shape."""

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


class BlockConfig(_Frozen):
    """The five Pattentions of one block."""

    query: PattentionConfig
    key: PattentionConfig
    value: PattentionConfig
    projection: PattentionConfig
    ffn: PattentionConfig

    def pattentions(self) -> dict[str, PattentionConfig]:
        """The block's Pattentions by name, in the order of the forward pass."""
        return {name: getattr(self, name) for name in PATTENTIONS}


class _LanguageModelConfig(_Frozen):
    vocab_size: PositiveInt
    """Rows of the embedding, which is also the output head (tied)."""

    hidden_size: PositiveInt
    """Model width D. Growth never changes it."""

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
_ADAPTER: TypeAdapter[TokenformerConfig | TransformerConfig] = TypeAdapter(ModelConfig)


def parse_model_config(data: str | bytes | dict[str, Any]) -> TokenformerConfig | TransformerConfig:
    """A configuration from its JSON text or from the object that JSON holds; pydantic.ValidationError if invalid."""
    if isinstance(data, dict):
        return _ADAPTER.validate_python(data, strict=False)
    return _ADAPTER.validate_json(data)


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


def grow_config(
    config: TokenformerConfig | TransformerConfig, *, attention_tokens: int, ffn_tokens: int
) -> TokenformerConfig:
    """`config` with one more generation in every Pattention, its keys at ramp 0 and tau as it was.

    The grown model is the same function: scores of keys at zero are zero and leave the L2 norm alone.
    `attention_tokens` is added to each of Q, K, V and O, `ffn_tokens` to the FFN; 0 leaves that part alone.

    Raises ValueError for a Transformer, for softmax scores (exp(0) = 1: a zero key takes its share), and when
    nothing or less than nothing is added.
    """
    if not isinstance(config, TokenformerConfig):
        raise ValueError(f"a {config.family} has no parameter tokens to add to; only a tokenformer grows")
    if config.score_function == "softmax":
        raise ValueError("score_function 'softmax' cannot be grown by zero keys: exp(0) = 1 would change the function")
    added = dict.fromkeys(PATTENTIONS, attention_tokens) | {"ffn": ffn_tokens}
    if min(added.values()) < 0 or max(added.values()) == 0:
        raise ValueError(
            f"growth adds {attention_tokens} attention and {ffn_tokens} FFN tokens; both must be at least 0, one above"
        )

    number = config.newest_generation + 1

    def grown(pattention: PattentionConfig, num_tokens: int) -> PattentionConfig:
        if num_tokens == 0:
            return pattention
        new = Generation(num_tokens=num_tokens, number=number, key_ramp=0.0)
        return pattention.model_copy(update={"generations": (*pattention.generations, new)})

    blocks = tuple(
        BlockConfig(**{name: grown(p, added[name]) for name, p in block.pattentions().items()})
        for block in config.blocks
    )
    return config.model_copy(update={"blocks": blocks})


def ramp_config(config: TokenformerConfig, ramp: float) -> TokenformerConfig:
    """`config` with every key ramp raised to at least `ramp`, and tau following: sqrt(sum of g^2 n).

    At 0 nothing changes; at 1 every Pattention has the published formula again. Pattentions that are fully ramped
    in are left as they are, tau included.
    """

    def ramped(pattention: PattentionConfig) -> PattentionConfig:
        if all(generation.key_ramp >= ramp for generation in pattention.generations):
            return pattention
        generations = tuple(g.model_copy(update={"key_ramp": max(g.key_ramp, ramp)}) for g in pattention.generations)
        weight = sum(g.key_ramp**2 * g.num_tokens for g in generations)
        return PattentionConfig(generations=generations, tau=published_tau(config.score_function, weight))

    blocks = tuple(
        BlockConfig(**{name: ramped(p) for name, p in block.pattentions().items()}) for block in config.blocks
    )
    return config.model_copy(update={"blocks": blocks})


def parameter_shapes(config: TokenformerConfig | TransformerConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter's name and shape, in the order of the built model's `named_parameters()`."""
    width = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (config.vocab_size, width)}
    for i in range(config.num_layers):
        block = f"blocks.{i}"
        if isinstance(config, TokenformerConfig):
            for name, pattention in config.blocks[i].pattentions().items():
                for kind in ("key", "value"):
                    for generation in pattention.generations:
                        shape = (generation.num_tokens, width)
                        shapes[f"{block}.{name}.{kind}_tokens.{generation.number}"] = shape
        else:
            sizes = {"attention_input": (3 * width, width), "projection": (width, width)}
            sizes |= {"ffn_input": (config.ffn_size, width), "ffn_output": (width, config.ffn_size)}
            for norm in ("attention_norm", "ffn_norm"):
                shapes |= {f"{block}.{norm}.weight": (width,), f"{block}.{norm}.bias": (width,)}
            for name, size in sizes.items():
                shapes |= {f"{block}.{name}.weight": size, f"{block}.{name}.bias": size[:1]}
    return shapes | {"final_norm.weight": (width,), "final_norm.bias": (width,)}


def num_parameters(config: TokenformerConfig | TransformerConfig) -> int:
    """Parameters in all, the tied embedding counted once."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def generation_of(parameter_name: str) -> int:
    """The generation that a parameter belongs to; everything that is not a parameter token is of generation 0."""
    match = _GENERATION.search(parameter_name)
    return int(match.group(1)) if match else 0
