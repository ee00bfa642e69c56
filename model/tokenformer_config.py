"""Configurations of Tokenformers as data: generations of parameter tokens, tau.

Imports no torch.

Names follow Tokenformer (arXiv 2410.23168): a Pattention holds parameter tokens. The parameter tokens that one growth
adds are a generation.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from model.config import AnyBlockConfig, LanguageModelConfig, PositiveFinite
from model.errors import UserError
from model.strict import Strict, example

ScoreFunction = Literal["l2_norm_gelu", "gelu_l2_norm", "softmax"]

PATTENTIONS = ("query", "key", "value", "projection", "ffn")
"""The five Pattentions of a block, in the order of the forward pass."""


def published_tau(score_function: ScoreFunction, num_tokens: float) -> float:
    """The tau of the published runs: sqrt(n) after an L2 norm, n after the softmax's L1 norm (official code)."""
    return num_tokens if score_function == "softmax" else math.sqrt(num_tokens)


class Routing(Strict):
    """Divides the parameter tokens of a generation into groups; each data token attends to only some. By default, and
    in layers that growth adds, it attends to all."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    groups: Annotated[int, Field(ge=2, le=4096), example(8, "groups")]
    """Number of equally large groups."""
    read: Annotated[PositiveInt, example(2, "groups")]
    """Groups that a data token attends to: those whose mean keys have the highest cosines with it. A bias on each
    cosine evens out how often groups are chosen."""

    @model_validator(mode="after")
    def _reads_what_there_is(self) -> Self:
        if self.read > self.groups:
            raise ValueError(f"read {self.read} is more than the {self.groups} groups that there are")
        return self


ROUTED_SOFTMAX = (
    "routing sets the scores of unread tokens to 0, which score_function 'softmax' gives the weight exp(0) = 1"
)
"""What a message says of the two together."""


def tokens_read(num_tokens: int, routing: Routing | None) -> int:
    """How many of a generation's tokens a data token reads. Raises UserError if they are no whole groups."""
    if routing is None:
        return num_tokens
    if num_tokens % routing.groups:
        raise UserError(
            f"routing.groups is {routing.groups}: {num_tokens} tokens do not divide into so many groups of equal size"
        )
    return num_tokens // routing.groups * routing.read


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

    routing: Routing | None = Field(default=None, exclude_if=lambda routing: routing is None)
    """Which of its tokens a data token reads. None: all."""

    biases: tuple[float, ...] = Field(default=(), exclude_if=lambda biases: not biases)
    """What training has added to the affinity of each group, so that all are read equally often. Empty: zeros."""

    @model_validator(mode="after")
    def _has_whole_groups(self) -> Self:
        tokens_read(self.num_tokens, self.routing)
        if self.biases and len(self.biases) != (self.routing.groups if self.routing else 0):
            raise ValueError(f"there are {len(self.biases)} biases; each group has one")
        return self

    @property
    def num_read(self) -> int:
        """Parameter tokens that a data token reads."""
        return tokens_read(self.num_tokens, self.routing)


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
    def num_read(self) -> int:
        """Parameter tokens that a data token reads."""
        return sum(generation.num_read for generation in self.generations)

    @property
    def value_shares(self) -> tuple[float, ...]:
        """The factor on each generation's values: later copies of its tokens reduce it."""
        later = [1 + generation.copies for generation in self.generations[1:]] + [1]
        return tuple(1 / math.prod(later[i:]) for i in range(len(later)))


class BlockConfig(AnyBlockConfig):
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
    def generations(self) -> tuple[int, ...]:
        """The numbers of its generations of parameter tokens, in order."""
        return tuple(sorted({g.number for p in self.pattentions().values() for g in p.generations}))


class TokenformerConfig(LanguageModelConfig):
    """A Tokenformer (arXiv 2410.23168, section 3; layout of the official code)."""

    family: Literal["tokenformer"] = "tokenformer"
    score_function: ScoreFunction = "l2_norm_gelu"
    blocks: tuple[BlockConfig, ...]

    def block(self, block_id: int) -> BlockConfig:
        """The block with this id. Raises ValueError if the model has none."""
        return self.blocks[self.block_ids.index(block_id)]

    def pattentions(self) -> Iterator[tuple[str, PattentionConfig]]:
        """Every Pattention of every block, in the order of the forward pass, with the name that its block gives it."""
        return (each for block in self.blocks for each in block.pattentions().items())

    @property
    def is_routed(self) -> bool:
        """Whether data tokens read a generation only in part."""
        return any(g.routing for _, pattention in self.pattentions() for g in pattention.generations)


def tokenformer_config(
    *,
    num_layers: int,
    attention_tokens: int,
    ffn_tokens: int,
    projection_tokens: int | None = None,
    score_function: ScoreFunction = "l2_norm_gelu",
    routing: Routing | None = None,
    **shape: Any,
) -> TokenformerConfig:
    """A Tokenformer with one generation and the published tau.

    Each of Q, K, V and O has `attention_tokens` parameter tokens; `projection_tokens` sets another number for O.
    With `routing`, a data token reads a part of them; UserError if they do not divide into its groups, or with softmax.
    `shape` holds the fields that both families share (`vocab_size`, `hidden_size`, `num_heads`, ...).
    """

    if routing and score_function == "softmax":
        raise UserError(ROUTED_SOFTMAX)

    def pattention(num_tokens: int) -> PattentionConfig:
        read = tokens_read(num_tokens, routing)
        generation = Generation(num_tokens=num_tokens, routing=routing)
        return PattentionConfig(generations=(generation,), tau=published_tau(score_function, read))

    qkv, ffn = pattention(attention_tokens), pattention(ffn_tokens)
    projection = pattention(projection_tokens or attention_tokens)
    block = BlockConfig(query=qkv, key=qkv, value=qkv, projection=projection, ffn=ffn)
    return TokenformerConfig(score_function=score_function, blocks=(block,) * num_layers, **shape)


def pattention_widths(config: TokenformerConfig, pattention: str) -> tuple[int, int]:
    """The widths of a Pattention's input and output, which are those of its keys and values."""
    heads, kv_heads = (number * config.head_width for number in (config.num_heads, config.num_kv_heads))
    inner = {"query": heads, "key": kv_heads, "value": kv_heads}.get(pattention, config.hidden_size)
    return (heads if pattention == "projection" else config.hidden_size), inner
