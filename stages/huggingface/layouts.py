"""Models as tensors and settings of Transformers: a Tokenformer for the code that its export holds
(stages/huggingface/code), a Transformer baseline as GPT-NeoX.

Without its parallel residual and with tied embeddings, GPT-NeoX is the baseline block by block. Only the rows of the
joined projection to queries, keys and values are in another order.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from model.config import PATTENTIONS, TransformerConfig
from model.pattention import Pattention, TokenGroup, joined
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


def tokenformer_settings(model: Tokenformer) -> dict[str, Any]:
    """The part of `config.json` that describes the Pattentions.

    The class in `auto_map` brings its own `model_type`. With one in the file, Transformers warns of a model of another
    type when it loads the tokenizer without `trust_remote_code`.
    """
    config = model.config
    groups = [
        {
            name: [{"num_tokens": sum(map(len, g.keys)), "tau": g.tau.item()} for g in _token_groups(block, name)]
            for name in PATTENTIONS
        }
        for block in model.blocks.values()
    ]
    return {
        "architectures": ["TokenformerForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_tokenformer.TokenformerConfig",
            "AutoModel": "modeling_tokenformer.TokenformerModel",
            "AutoModelForCausalLM": "modeling_tokenformer.TokenformerForCausalLM",
        },
        "layer_norm_eps": config.norm_epsilon,
        "initializer_range": 0.02,
        "score_function": config.score_function,
        "pattentions": groups,
    }


@torch.no_grad()
def tokenformer_tensors(model: Tokenformer) -> dict[str, Tensor]:
    """The model's tensors under the names of the modeling code.

    The generations are joined, with their ramps and value shares multiplied in. In float32 these are the very numbers
    that the model computes with.
    """
    tensors = {"model.embed_tokens.weight": model.embedding.weight}
    for i, block in enumerate(model.blocks.values()):
        for name in PATTENTIONS:
            groups = _token_groups(block, name)
            place = f"model.layers.{i}.{'' if name == 'ffn' else 'attention.'}{name}"
            tensors[f"{place}.key_tokens"] = torch.cat([joined(g.keys, g.key_ramps) for g in groups])
            tensors[f"{place}.value_tokens"] = torch.cat([joined(g.values, g.value_shares) for g in groups])
    return tensors | {f"model.norm.{name}": value for name, value in model.final_norm.named_parameters()}


def _token_groups(block: nn.Module, name: str) -> list[TokenGroup]:
    return cast(Pattention, block.get_submodule(name)).token_groups()


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


@torch.no_grad()
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
