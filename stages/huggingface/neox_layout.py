"""A Transformer baseline as tensors and settings of Transformers' own GPT-NeoX, which computes the same function.

Without its parallel residual and with tied embeddings, GPT-NeoX is the baseline block by block. Only the rows of the
joined projection to queries, keys and values are in another order.
"""

from functools import partial
from typing import Any

from torch import Tensor

from model.config import TransformerConfig
from model.transformer import Transformer
from stages.huggingface.lazy_tensor import LazyTensor

NAMES = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attention_input": "attention.query_key_value",
    "projection": "attention.dense",
    "ffn_input": "mlp.dense_h_to_4h",
    "ffn_output": "mlp.dense_4h_to_h",
}
"""What GPT-NeoX calls the modules of a block."""


def settings(config: TransformerConfig) -> dict[str, Any]:
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


def tensors(model: Transformer) -> dict[str, LazyTensor]:
    """The model's tensors under GPT-NeoX's names."""
    lazy = {"gpt_neox.embed_in.weight": LazyTensor.unchanged(model.embedding.weight)}
    for part, value in model.final_norm.named_parameters():
        lazy[f"gpt_neox.final_layer_norm.{part}"] = LazyTensor.unchanged(value)
    by_head = partial(_by_head, num_heads=model.config.num_heads)
    for i, block in enumerate(model.blocks.values()):
        for ours, theirs in NAMES.items():
            for part, value in getattr(block, ours).named_parameters():
                tensor = LazyTensor.unchanged(value)
                if ours == "attention_input":
                    tensor = LazyTensor(tensor.shape, partial(by_head, value))
                lazy[f"gpt_neox.layers.{i}.{theirs}.{part}"] = tensor
    return lazy


def _by_head(value: Tensor, num_heads: int) -> Tensor:
    """Reorders rows from all queries, all keys, all values to the query, key and value of each head."""
    return value.unflatten(0, (3, num_heads, -1)).transpose(0, 1).flatten(0, 2)
