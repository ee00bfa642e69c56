"""A Tokenformer as tensors and settings of the modeling code that an export holds (stages/huggingface/code)."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from model.config import PATTENTIONS, PattentionConfig, TokenformerConfig
from model.pattention import Pattention
from model.tokenformer import Tokenformer
from stages.huggingface.lazy_tensor import LazyTensor

PLACES = {"query": "attention.", "key": "attention.", "value": "attention.", "projection": "attention.", "ffn": ""}
"""Where the modeling code keeps each Pattention of a block."""


@dataclass(frozen=True)
class Part:
    """The parameter tokens of one generation, as the export stores them."""

    number: int
    num_tokens: int
    key_ramp: float
    value_share: float


def token_parts(pattention: PattentionConfig) -> list[list[Part]]:
    """The generations in the order of the export: those that share a norm first, then each that has its own."""
    shares = pattention.value_shares
    parts = [
        (g.tau, Part(g.number, g.num_tokens, g.key_ramp, share))
        for g, share in zip(pattention.generations, shares, strict=True)
    ]
    shared, own = ([part for tau, part in parts if (tau is None) == wanted] for wanted in (True, False))
    return [group for group in (shared, *([part] for part in own)) if group]


def settings(config: TokenformerConfig, *, keep_generations: bool) -> dict[str, Any]:
    """The part of `config.json` that describes the Pattentions."""

    def layout(pattention: PattentionConfig) -> dict[str, Any]:
        groups = token_parts(pattention)
        taus = {g.number: g.tau or pattention.tau for g in pattention.generations}
        sizes = [{"num_tokens": sum(p.num_tokens for p in group), "tau": taus[group[0].number]} for group in groups]
        parts = [dataclasses.asdict(part) for group in groups for part in group]
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
    for i, name, pattention in _pattentions(model):
        prefix = f"model.layers.{i}.{PLACES[name]}{name}"
        parts = [part for group in token_parts(pattention.config) for part in group]
        for kind in ("key", "value"):
            stored = f"{prefix}.{kind}_tokens"
            if keep_generations:
                lazy |= {f"{stored}_{p.number}": LazyTensor.unchanged(_tokens(pattention, kind, p)) for p in parts}
            else:
                shape = (sum(part.num_tokens for part in parts), model.config.hidden_size)
                lazy[stored] = LazyTensor(shape, partial(_joined, pattention, kind, parts))
    for name, value in model.final_norm.named_parameters():
        lazy[f"model.norm.{name}"] = LazyTensor.unchanged(value)
    return lazy


@torch.no_grad()
def round_like_export(model: Tokenformer, dtype: torch.dtype, *, keep_generations: bool) -> None:
    """Rounds the model's parameters in place, so that it computes with the numbers that an export in `dtype` holds."""
    for parameter in (model.embedding.weight, *model.final_norm.parameters()):
        parameter.copy_(parameter.to(dtype))
    for _, _, pattention in _pattentions(model):
        for part in (part for group in token_parts(pattention.config) for part in group):
            for kind in ("key", "value"):
                scale = 1.0 if keep_generations else _scale(kind, part)
                tokens = _tokens(pattention, kind, part)
                if scale:
                    tokens.copy_((tokens * scale).to(dtype).float() / scale)


def _pattentions(model: Tokenformer) -> Iterator[tuple[int, str, Pattention]]:
    for i, block in enumerate(model.blocks.values()):
        for name in PATTENTIONS:
            yield i, name, cast(Pattention, getattr(block, name))


def _tokens(pattention: Pattention, kind: str, part: Part) -> Tensor:
    return (pattention.key_tokens if kind == "key" else pattention.value_tokens)[str(part.number)]


def _scale(kind: str, part: Part) -> float:
    return part.key_ramp if kind == "key" else part.value_share


def _joined(pattention: Pattention, kind: str, parts: list[Part]) -> Tensor:
    pairs = [(_tokens(pattention, kind, part), _scale(kind, part)) for part in parts]
    scaled = [tokens if scale == 1 else tokens * scale for tokens, scale in pairs]
    return scaled[0] if len(scaled) == 1 else torch.cat(scaled)
