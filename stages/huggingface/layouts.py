"""A Tokenformer as settings and tensors for the code that its export holds (stages/huggingface/code)."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from model.pattention import Pattention, TokenGroup, joined
from model.tokenformer import Tokenformer
from model.tokenformer_config import PATTENTIONS


def tokenformer_settings(model: Tokenformer) -> dict[str, Any]:
    """The part of `config.json` that describes the Pattentions.

    The class in `auto_map` brings its own `model_type`. With one in the file, Transformers warns of a model of another
    type when it loads the tokenizer without `trust_remote_code`.
    """
    config, image = model.config, model.config.image
    head = "ForCausalLM" if image is None else "ForImageClassification"
    groups = [
        {
            name: [{"num_tokens": sum(map(len, g.keys)), "tau": g.tau.item()} for g in _token_groups(block, name)]
            for name in PATTENTIONS
        }
        for block in model.blocks.values()
    ]
    return {
        "architectures": [f"Tokenformer{head}"],
        "auto_map": {
            "AutoConfig": "configuration_tokenformer.TokenformerConfig",
            "AutoModel": "modeling_tokenformer.TokenformerModel",
            f"AutoModel{head}": f"modeling_tokenformer.Tokenformer{head}",
        },
        **({"vocab_size": config.vocab_size} if image is None else {"image": image.model_dump()}),
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_width,
        "norm": config.norm,
        "layer_norm_eps": config.norm_epsilon,
        "qk_norm": config.qk_norm,
        "tie_word_embeddings": config.tie_embeddings,
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
    embedding = model.embedding.named_parameters()
    tensors: dict[str, Tensor] = {f"model.embed_tokens.{name}": value for name, value in embedding}
    for i, block in enumerate(model.blocks.values()):
        for name in PATTENTIONS:
            groups = _token_groups(block, name)
            place = f"model.layers.{i}.{'' if name == 'ffn' else 'attention.'}{name}"
            tensors[f"{place}.key_tokens"] = torch.cat([joined(g.keys, g.key_ramps) for g in groups])
            tensors[f"{place}.value_tokens"] = torch.cat([joined(g.values, g.value_shares) for g in groups])
    tensors |= {f"model.norm.{name}": value for name, value in model.final_norm.named_parameters()}
    if model.config.tie_embeddings:
        return tensors
    head, prefix = model.head.named_parameters(), "lm_head" if model.config.image is None else "classifier"
    return tensors | {f"{prefix}.{name}": value for name, value in head}


def _token_groups(block: nn.Module, name: str) -> list[TokenGroup]:
    return cast(Pattention, block.get_submodule(name)).token_groups()
