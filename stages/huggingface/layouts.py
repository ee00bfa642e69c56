"""Models as tensors and settings of Transformers: a Tokenformer for the code that its export holds
(stages/huggingface/code), a Transformer baseline as GPT-NeoX.

Without its parallel residual and with tied embeddings, GPT-NeoX is the baseline block by block. Only the rows of the
joined projection to queries, keys and values are in another order.
"""

from typing import Any, cast

import torch
from torch import Tensor

from model.config import PATTENTIONS, Generation, PattentionConfig, TokenformerConfig, TransformerConfig
from model.pattention import Pattention
from model.tokenformer import Tokenformer
from model.transformer import Transformer

NEOX_NAMES = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention_input": "attention.query_key_value",
    "projection": "attention.dense",
    "ffn_input": "mlp.dense_h_to_4h",
    "ffn_output": "mlp.dense_4h_to_h",
}
"""What GPT-NeoX calls the modules of a block."""


def tokenformer_settings(config: TokenformerConfig) -> dict[str, Any]:
    """The part of `config.json` that describes the Pattentions."""

    def groups(pattention: PattentionConfig) -> list[dict[str, Any]]:
        return [
            {"num_tokens": sum(g.num_tokens for g, _ in group), "tau": group[0][0].tau or pattention.tau}
            for group in _groups(pattention)
        ]

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
        "pattentions": [{name: groups(p) for name, p in block.pattentions().items()} for block in config.blocks],
    }


def tokenformer_tensors(model: Tokenformer) -> dict[str, Tensor]:
    """The model's tensors under the names of the modeling code.

    The generations are joined, with their ramps and value shares multiplied in. In float32 these are the very numbers
    that the model computes with.
    """
    tensors = {"model.embed_tokens.weight": model.embedding.weight}
    for i, block in enumerate(model.blocks.values()):
        for name in PATTENTIONS:
            pattention = cast(Pattention, getattr(block, name))
            parts = [part for group in _groups(pattention.config) for part in group]
            place = f"model.layers.{i}.{'' if name == 'ffn' else 'attention.'}{name}"
            tensors[f"{place}.key_tokens"] = _joined(
                [(pattention.key_tokens[str(g.number)], g.key_ramp) for g, _ in parts]
            )
            tensors[f"{place}.value_tokens"] = _joined(
                [(pattention.value_tokens[str(g.number)], share) for g, share in parts]
            )
    return tensors | {f"model.norm.{name}": value for name, value in model.final_norm.named_parameters()}


def _groups(pattention: PattentionConfig) -> list[list[tuple[Generation, float]]]:
    """The generations, each with the factor on its values, in the order of the export: those that share a norm first,
    then each that has its own."""
    parts = list(zip(pattention.generations, pattention.value_shares, strict=True))
    shared = [part for part in parts if part[0].tau is None]
    own = [[part] for part in parts if part[0].tau is not None]
    return [shared, *own] if shared else own


def _joined(parts: list[tuple[Tensor, float]]) -> Tensor:
    return torch.cat([tokens if factor == 1 else tokens * factor for tokens, factor in parts])


def neox_settings(config: TransformerConfig) -> dict[str, Any]:
    """The part of `config.json` that describes the architecture."""
    return {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "layer_norm_eps": config.norm_epsilon,
        "initializer_range": 0.02,
        "intermediate_size": config.ffn_size,
        "use_parallel_residual": False,
        "attention_bias": True,
        "hidden_act": "gelu",
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
    }


def neox_tensors(model: Transformer) -> dict[str, Tensor]:
    """The model's tensors under GPT-NeoX's names."""
    tensors = {"gpt_neox.embed_in.weight": model.embedding.weight}
    for part, value in model.final_norm.named_parameters():
        tensors[f"gpt_neox.final_layer_norm.{part}"] = value
    for i, block in enumerate(model.blocks.values()):
        for ours, theirs in NEOX_NAMES.items():
            for part, value in getattr(block, ours).named_parameters():
                if ours == "attention_input":  # from all queries, all keys, all values to those of each head
                    value = value.unflatten(0, (3, model.config.num_heads, -1)).transpose(0, 1).flatten(0, 2)
                tensors[f"gpt_neox.layers.{i}.{theirs}.{part}"] = value
    return tensors
