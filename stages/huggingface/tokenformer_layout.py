"""A Tokenformer as tensors and settings of the modeling code that an export holds (stages/huggingface/code)."""

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from model.config import PATTENTIONS, Generation, PattentionConfig, TokenformerConfig
from model.pattention import Pattention
from model.tokenformer import Tokenformer
from stages.huggingface.lazy_tensor import LazyTensor

PLACES = {"query": "attention.", "key": "attention.", "value": "attention.", "projection": "attention.", "ffn": ""}
"""Where the modeling code keeps each Pattention of a block."""


def settings(config: TokenformerConfig, *, keep_generations: bool) -> dict[str, Any]:
    """The part of `config.json` that describes the Pattentions."""

    def layout(pattention: PattentionConfig) -> dict[str, Any]:
        groups = _groups(pattention)
        sizes = [
            {"num_tokens": sum(g.num_tokens for g, _ in group), "tau": group[0][0].tau or pattention.tau}
            for group in groups
        ]
        parts = [
            {"number": g.number, "num_tokens": g.num_tokens, "key_ramp": g.key_ramp, "value_share": share}
            for group in groups
            for g, share in group
        ]
        return {"groups": sizes, "generations": parts if keep_generations else None}

    layers = [{name: layout(p) for name, p in block.pattentions().items()} for block in config.blocks]
    return {
        "model_type": "tokenformer",
        "architectures": ["TokenformerForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_tokenformer.TokenformerConfig",
            "AutoModel": "modeling_tokenformer.TokenformerModel",
            "AutoModelForCausalLM": "modeling_tokenformer.TokenformerForCausalLM",
        },
        "layer_norm_eps": config.norm_epsilon,
        "initializer_range": 0.02,
        "score_function": config.score_function,
        "pattentions": layers,
    }


def tensors(model: Tokenformer, *, keep_generations: bool) -> dict[str, LazyTensor]:
    """The model's tensors under the names of the modeling code.

    By default the generations are joined, with their ramps and value shares multiplied in. In float32 these are the
    very numbers that the model computes with.
    """
    lazy = {"model.embed_tokens.weight": LazyTensor.unchanged(model.embedding.weight)}
    for name, parts in _tokens(model):
        if keep_generations:
            lazy |= {f"{name}_{number}": LazyTensor.unchanged(tokens) for number, tokens, _ in parts}
        else:
            shape = (sum(len(tokens) for _, tokens, _ in parts), model.config.hidden_size)
            lazy[name] = LazyTensor(shape, partial(_joined, parts))
    return lazy | {
        f"model.norm.{name}": LazyTensor.unchanged(value) for name, value in model.final_norm.named_parameters()
    }


@torch.no_grad()
def round_like_export(model: Tokenformer, dtype: torch.dtype, *, keep_generations: bool) -> None:
    """Rounds the model's parameters in place, so that it computes with the numbers that an export in `dtype` holds."""
    for parameter in (model.embedding.weight, *model.final_norm.parameters()):
        parameter.copy_(parameter.to(dtype))
    for _, parts in _tokens(model):
        for _, tokens, factor in parts:
            scale = 1.0 if keep_generations else factor
            if scale:
                tokens.copy_((tokens * scale).to(dtype).float() / scale)


def _groups(pattention: PattentionConfig) -> list[list[tuple[Generation, float]]]:
    """The generations, each with the factor on its values, in the order of the export: those that share a norm first,
    then each that has its own."""
    parts = list(zip(pattention.generations, pattention.value_shares, strict=True))
    shared = [part for part in parts if part[0].tau is None]
    own = [[part] for part in parts if part[0].tau is not None]
    return [shared, *own] if shared else own


def _tokens(model: Tokenformer) -> Iterator[tuple[str, list[tuple[int, Tensor, float]]]]:
    """The keys and the values of every Pattention under the name of the joined tensor: the number of each generation,
    its tokens, and the factor on them."""
    for i, block in enumerate(model.blocks.values()):
        for name in PATTENTIONS:
            pattention = cast(Pattention, getattr(block, name))
            keys, values = pattention.key_tokens, pattention.value_tokens
            parts = [part for group in _groups(pattention.config) for part in group]
            prefix = f"model.layers.{i}.{PLACES[name]}{name}"
            yield f"{prefix}.key_tokens", [(g.number, keys[str(g.number)], g.key_ramp) for g, _ in parts]
            yield f"{prefix}.value_tokens", [(g.number, values[str(g.number)], share) for g, share in parts]


def _joined(parts: list[tuple[int, Tensor, float]]) -> Tensor:
    scaled = [tokens if factor == 1 else tokens * factor for _, tokens, factor in parts]
    return scaled[0] if len(scaled) == 1 else torch.cat(scaled)
