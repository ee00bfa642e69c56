"""The names and shapes of the parameters of a model of either family, from its configuration.

Imports no torch.
"""

import math
from typing import Annotated, Any

from pydantic import Field

from model.decoder_config import DecoderConfig, decoder_shapes
from model.parameter_names import (
    CLASS_TOKEN,
    EMBEDDING,
    EMBEDDING_BIAS,
    FINAL_NORM,
    HEAD,
    HEAD_BIAS,
    POSITIONS,
    TOKEN_KINDS,
    PartName,
    in_block,
)
from model.tokenformer_config import TokenformerConfig, pattention_widths

ModelConfig = Annotated[TokenformerConfig | DecoderConfig, Field(discriminator="family")]

HEADS = ("num_heads", "num_kv_heads", "head_width")


def block_shapes(config: ModelConfig, index: int) -> dict[str, tuple[int, ...]]:
    """The name and shape of every parameter of a block, as the block calls them. Each name ends in its generation."""
    if isinstance(config, DecoderConfig):
        return decoder_shapes(config, config.blocks[index])
    shapes: dict[str, tuple[int, ...]] = {}
    for name, pattention in config.blocks[index].pattentions().items():
        for kind, width in zip(TOKEN_KINDS, pattention_widths(config, name), strict=True):
            shapes |= {f"{name}.{kind}.{g.number}": (g.num_tokens, width) for g in pattention.generations}
    return shapes


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The name and shape of every parameter, in the order of the built model's `named_parameters()`."""
    shapes = _embedding_shapes(config)
    for index, block_id in enumerate(config.block_ids):
        shapes |= {in_block(block_id, name): shape for name, shape in block_shapes(config, index).items()}
    kinds = ("weight",) if config.norm == "rmsnorm" else ("weight", "bias")
    shapes |= {f"{FINAL_NORM}.{kind}": (config.hidden_size,) for kind in kinds}
    if not config.tie_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes | {HEAD_BIAS: (config.vocab_size,)} if config.image else shapes


def _embedding_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    image, width = config.image, config.hidden_size
    if image is None:
        return {EMBEDDING: (config.vocab_size, width)}
    shapes = {EMBEDDING: (width, image.patch_values), EMBEDDING_BIAS: (width,)}
    shapes |= {POSITIONS: (image.sequence_length, width)}
    return shapes | ({CLASS_TOKEN: (width,)} if image.pooling == "class_token" else {})


def parameter_shape(name: str, config: ModelConfig) -> tuple[int, ...]:
    """The shape of parameter `name`.

    One in a block is looked up there, so the time to draw a growth is linear in the number of added parameters.
    """
    part = PartName.parse(name)
    if part is None:
        return parameter_shapes(config)[name]
    return block_shapes(config, config.block_ids.index(part.block))[part.in_block]


def num_parameters(config: ModelConfig) -> int:
    """The number of parameters. A tied embedding counts once."""
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def num_read_parameters(config: ModelConfig) -> int | None:
    """The number of parameters that a data token reads where generations are routed; None if it reads all."""
    unread = unread_parameters(config)
    return num_parameters(config) - unread if unread else None


def unread_parameters(config: ModelConfig) -> int:
    """The number of parameters that a data token leaves unread in routed generations."""
    if not isinstance(config, TokenformerConfig):
        return 0
    return sum((p.num_tokens - p.num_read) * sum(pattention_widths(config, name)) for name, p in config.pattentions())


def num_embedding_parameters(config: ModelConfig) -> int:
    """The number of parameters of the embedding of tokens, or of patches and their positions."""
    return sum(math.prod(shape) for name, shape in parameter_shapes(config).items() if name.startswith("embedding."))


def model_shape(model: ModelConfig) -> dict[str, Any]:
    """What a stage may change of a model: its layers, its width, and the parameter tokens of each layer."""
    if isinstance(model, TokenformerConfig):
        return {
            "num_layers": model.num_layers,
            "hidden_size": model.hidden_size,
            "attention_tokens": _same([block.query.num_tokens for block in model.blocks]),
            "ffn_tokens": _same([block.ffn.num_tokens for block in model.blocks]),
        }
    return {name: getattr(model, name) for name in ("num_layers", "hidden_size", *HEADS, "ffn_tokens")}


def _same(counts: list[int]) -> int | list[int] | None:
    """One number for layers that are alike, else one for each layer; None without layers."""
    return counts if len(set(counts)) > 1 else counts[0] if counts else None
