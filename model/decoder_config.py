"""Configurations of decoders as data, and the shapes of their parameters.

Imports no torch.
"""

from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from model.config import AnyBlockConfig, LanguageModelConfig
from model.strict import Strict

Activation = Literal["gelu", "swiglu", "relu2"]


class Rows(Strict):
    """What one growth adds to a part of a decoder's block."""

    number: NonNegativeInt = 0
    """The number of the growth, 0 for the base. Parameter names contain it."""

    count: PositiveInt
    """Units of the FFN, or heads of keys and values, each with its group of query heads."""


class DecoderBlockConfig(AnyBlockConfig):
    """The sizes of one block of a decoder, by generation, the oldest first."""

    heads: tuple[Rows, ...] = Field(min_length=1)
    ffn: tuple[Rows, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _numbers_rise(self) -> Self:
        for part in (self.heads, self.ffn):
            numbers = [rows.number for rows in part]
            if numbers != sorted(set(numbers)) or numbers[0] != self.heads[0].number:
                raise ValueError(
                    f"generations are numbered {numbers}; each must be above the one before, and heads and ffn begin "
                    "with the same"
                )
        return self

    @property
    def ffn_tokens(self) -> int:
        """Units of the FFN over all generations."""
        return sum(rows.count for rows in self.ffn)

    @property
    def generations(self) -> tuple[int, ...]:
        """The numbers of its generations of heads and units, in order."""
        return tuple(sorted({rows.number for rows in (*self.heads, *self.ffn)}))


class DecoderConfig(LanguageModelConfig):
    """A decoder of linear layers: GPT-NeoX, Llama, Mistral, Qwen2, Qwen3 and ViT are settings of it."""

    family: Literal["decoder"] = "decoder"
    activation: Activation = "gelu"
    """Of the FFN: `gelu`; `swiglu` (arXiv 2002.05202), SiLU of one projection times another; `relu2` (arXiv
    2109.08668), the square of a ReLU."""

    parallel_residual: bool = False
    """Whether attention and FFN read the same input and are added together, as in GPT-NeoX (arXiv 2204.06745)."""

    qkv_bias: bool = True
    """Whether the projections to queries, keys and values have biases."""

    output_bias: bool = True
    """Whether the projection of the heads' outputs has one."""

    ffn_bias: bool = True
    """Whether the FFN's projections have biases."""

    blocks: tuple[DecoderBlockConfig, ...]

    @property
    def group_size(self) -> int:
        """Query heads that share a head of keys and values."""
        return self.num_heads // self.num_kv_heads

    @property
    def ffn_tokens(self) -> int:
        """Units of each FFN; layers are alike."""
        return self.blocks[0].ffn_tokens if self.blocks else 0

    @model_validator(mode="after")
    def _layers_are_alike(self) -> Self:
        sizes = {(sum(rows.count for rows in block.heads), block.ffn_tokens) for block in self.blocks}
        if len(sizes) > 1 or any(heads != self.num_kv_heads for heads, _ in sizes):
            raise ValueError(
                f"the layers have {sorted(sizes)} (heads of keys and values, FFN units); all must have the same, and "
                f"num_kv_heads {self.num_kv_heads} heads"
            )
        return self

    def block(self, block_id: int) -> DecoderBlockConfig:
        """The block with this id. Raises ValueError if the model has none."""
        return self.blocks[self.block_ids.index(block_id)]


def decoder_config(*, num_layers: int, ffn_tokens: int, **shape: Any) -> DecoderConfig:
    """A decoder of one generation. `shape` holds its other fields (`vocab_size`, `hidden_size`, `num_heads`, ...)."""
    heads, ffn = ((Rows(count=count),) for count in (shape.get("num_kv_heads", shape["num_heads"]), ffn_tokens))
    return DecoderConfig(blocks=(DecoderBlockConfig(heads=heads, ffn=ffn),) * num_layers, **shape)


def decoder_shapes(config: DecoderConfig, block: DecoderBlockConfig) -> dict[str, tuple[int, ...]]:
    """The name and shape of every parameter of a decoder's block, as the block calls them.

    All matrices are (units, D), those that write to the residual stream too, so a growth appends rows to each.
    """
    width, first, gated = config.hidden_size, block.generation, config.activation == "swiglu"
    shapes: dict[str, tuple[int, ...]] = {}

    def vectors(part: str, size: int, *kinds: str) -> None:
        shapes.update({f"{part}.{kind}.{first}": (size,) for kind in kinds})

    def matrices(part: str, rows: tuple[Rows, ...], row_width: int, bias: bool = False) -> None:
        for kind in ("weight", "bias") if bias else ("weight",):
            for each in rows:
                size = each.count * row_width
                shapes[f"{part}.{kind}.{each.number}"] = (size, width) if kind == "weight" else (size,)

    norm = ("weight",) if config.norm == "rmsnorm" else ("weight", "bias")
    grouped = config.group_size * config.head_width
    vectors("attention_norm", width, *norm)
    matrices("query", block.heads, grouped, config.qkv_bias)
    for part in ("key", "value"):
        matrices(part, block.heads, config.head_width, config.qkv_bias)
    for part in ("query_norm", "key_norm") if config.qk_norm else ():
        vectors(part, config.head_width, "weight")
    matrices("projection", block.heads, grouped)
    vectors("projection", width, *(("bias",) if config.output_bias else ()))
    vectors("ffn_norm", width, *norm)
    for part in ("gate", "up") if gated else ("up",):
        matrices(part, block.ffn, 1, config.ffn_bias)
    matrices("down", block.ffn, 1)
    vectors("down", width, *(("bias",) if config.ffn_bias else ()))
    return shapes
