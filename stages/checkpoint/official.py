"""Loads checkpoints of the official PyTorch code (Haiyang-W/TokenFormer, on GPT-NeoX)."""

import pickle
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor
from yaml import YAMLError

from model.config import TokenformerConfig, parameter_shapes, tokenformer_config
from model.initialization import build_model
from model.language_model import LanguageModel
from model.parameter_names import EMBEDDING, FINAL_NORM, TOKEN_KINDS, TokensName
from stages.checkpoint.manifest import CheckpointError

_PATTENTIONS = {
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "projection": "attention.proj",
    "ffn": "mlp",
}

_SUPPORTED = {
    "pos_emb": "rotary",
    "no_weight_tying": False,
    "norm": "layernorm_nonparam",
    "final_norm": "layernorm",
    "gpt_j_residual": False,
    "use_bias_in_attn_linear": False,
}
"""The settings of the published architecture. Other values are not supported."""


def official_config(path: Path, vocab_size: int) -> TokenformerConfig:
    """The configuration of the model that a NeoX-style YAML describes. NeoX pads the embedding to `vocab_size` rows.

    Raises CheckpointError if a setting selects another architecture than the published one.
    """
    settings = _settings(path)
    for key, expected in _SUPPORTED.items():
        if settings.get(key, expected) != expected:
            raise CheckpointError(f"{path}: {key} is {settings[key]!r}; growctl only supports {expected!r}")
    try:
        return tokenformer_config(
            num_layers=settings["num_layers"],
            attention_tokens=settings["qkv_slot_num"],
            projection_tokens=settings["proj_slot_num"],
            ffn_tokens=settings["ffn_slot_num"],
            score_function=settings.get("norm_activation_type", "l2_norm_gelu"),
            vocab_size=vocab_size,
            hidden_size=settings["hidden_size"],
            num_heads=settings["num_attention_heads"],
            rotary_fraction=float(settings.get("rotary_pct", 1.0)),
            rotary_base=float(settings.get("rotary_emb_base", 10000)),
        )
    except KeyError as error:
        raise CheckpointError(f"{path} lacks {error.args[0]}") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path} does not describe a model: {str(error).splitlines()[0]}") from error


def _settings(path: Path) -> dict[str, Any]:
    """The keys and values of the YAML as written. Nothing in it is resolved or called."""
    try:
        loaded = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not a YAML file of settings: {str(error).splitlines()[0]}") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path} is not a YAML file of settings: it has no keys")
    return {str(key).replace("-", "_"): value for key, value in loaded.items()}


def official_names(config: TokenformerConfig) -> dict[str, str]:
    """The names in the official flat state dict, by our parameter names."""
    names = {EMBEDDING: "sequential.0.word_embeddings.weight"}
    for i in range(config.num_layers):
        for ours, theirs in _PATTENTIONS.items():
            for kind in TOKEN_KINDS:
                names[str(TokensName(i, ours, kind, 0))] = f"sequential.{i + 2}.{theirs}.{kind}_param_tokens"
    for part in ("weight", "bias"):
        names[f"{FINAL_NORM}.{part}"] = f"sequential.{config.num_layers + 3}.norm.{part}"
    return names


def load_official(weights: Path, settings: Path) -> LanguageModel:
    """The model of an official `.bin` (a flat state dict, loaded with weights_only) and its NeoX YAML, float32 on CPU.

    Raises CheckpointError if a tensor is missing, unknown or of the wrong shape.
    """
    try:
        state: dict[str, Tensor] = torch.load(weights, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch's own message goes on to explain how to load such a file anyway.
        raise CheckpointError(
            f"{weights} is not a plain state dict of tensors; growctl loads nothing else, because it could run code"
        ) from error
    except (RuntimeError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{weights} cannot be opened: {reason}") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(f"{weights} is not an official checkpoint: it does not consist of named tensors")
    embedding = state.get("sequential.0.word_embeddings.weight")
    if embedding is None:
        raise CheckpointError(f"{weights} is not an official checkpoint: it has no sequential.0.word_embeddings.weight")
    config = official_config(settings, vocab_size=embedding.shape[0])
    names = official_names(config)
    left_over = set(state) - set(names.values())
    if left_over:
        raise CheckpointError(f"{weights} has {min(left_over)}, which the model in {settings} does not have")
    for name, shape in parameter_shapes(config).items():
        found = state.get(names[name])
        if found is None or tuple(found.shape) != shape:
            what = "is missing" if found is None else f"has shape {list(found.shape)}, not {list(shape)}"
            raise CheckpointError(f"{weights}: {names[name]} {what}")
    model = build_model(config)
    model.load_state_dict({name: state[official] for name, official in names.items()})
    return model.eval()
