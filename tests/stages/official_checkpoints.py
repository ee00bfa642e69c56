"""Small checkpoints in the layout of the official code, for tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import yaml
from torch import Tensor

from model.shapes import parameter_shapes
from model.tokenformer_config import TokenformerConfig, tokenformer_config
from stages.official.layout import official_names

EMBEDDING = "sequential.0.word_embeddings.weight"
FFN_KEYS = "sequential.2.mlp.key_param_tokens"
SETTINGS: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "qkv_slot_num": 4,
    "proj_slot_num": 4,
    "ffn_slot_num": 8,
    "seq_length": 16,
    "pos_emb": "rotary",
    "rotary_pct": 0.25,
    "norm": "layernorm_nonparam",
    "final_norm": "layernorm",
}


def official_state(vocab_size: int = 264) -> dict[str, Tensor]:
    """Random tensors of the model that SETTINGS describe."""
    generator = torch.Generator().manual_seed(7)
    names = official_names(published(vocab_size))
    return {
        names[name]: torch.randn(shape, generator=generator) * 0.3
        for name, shape in parameter_shapes(published(vocab_size)).items()
    }


def published(vocab_size: int = 264) -> TokenformerConfig:
    """The configuration of the model that SETTINGS describe."""
    return tokenformer_config(
        num_layers=2, attention_tokens=4, ffn_tokens=8, vocab_size=vocab_size, hidden_size=32, num_heads=2
    )


def write_settings(folder: Path, **changes: Any) -> Path:
    """SETTINGS with `changes` as a YAML; None removes a key."""
    settings = {key: value for key, value in (SETTINGS | changes).items() if value is not None}
    path = folder / "model.yml"
    path.write_text(yaml.safe_dump(settings))
    return path


def write_official(
    folder: Path, changes: Mapping[str, Tensor | None] | None = None, *, name: str = "model.bin", **settings: Any
) -> tuple[Path, Path]:
    """A file of weights and its YAML, with `changes` to the tensors; None removes one."""
    state = {key: tensor for key, tensor in {**official_state(), **(changes or {})}.items() if tensor is not None}
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    return path, write_settings(folder, **settings)
