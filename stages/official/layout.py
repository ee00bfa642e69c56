"""The layout of the official PyTorch code (Haiyang-W/TokenFormer, on GPT-NeoX): its settings and parameter names.

Imports no torch. Statements about the official code hold for its commit 4d56c73 of February 2025, where
`megatron/model/gpt2_model.py` builds the model from the layers in `megatron/model/tokenformer.py`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple, TypeGuard

from pydantic import ValidationError

from model.config import TokenformerConfig, tokenformer_config
from model.errors import UserError
from model.parameter_names import EMBEDDING, FINAL_NORM, TOKEN_KINDS, TokensName
from model.strict import first_reason
from stages.checkpoint.manifest import CheckpointError
from stages.plain_yaml import read_yaml

OFFICIAL_EMBEDDING = "sequential.0.word_embeddings.weight"

_PATTENTIONS = {
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "projection": "attention.proj",
    "ffn": "mlp",
}

_SUPPORTED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "pos_emb": ("learned", ("rotary", "none")),
    "norm": ("layernorm", ("layernorm_nonparam",)),
    "final_norm": ("layernorm_nonparam", ("layernorm",)),  # without it, GPT-NeoX takes `norm`
    "no_weight_tying": (False, (False,)),
    "use_mup": (False, (False,)),
    "transformer_increase_dim": (0, (0,)),
    "model_parallel_size": (1, (1,)),
}
"""Settings that change the function: GPT-NeoX's default, and the values with which growctl computes the same."""

IGNORED_BY_OFFICIAL_LAYERS: dict[str, Any] = {
    "gpt_j_residual": False,
    "gpt_j_tied": False,
    "use_bias_in_attn_linear": False,
    "use_qk_layernorm": False,
    "num_kv_heads": None,
    "mlp_type": "regular",
    "activation": "gelu",
    "apply_query_key_layer_scaling": False,
    "attention_softmax_in_fp32": False,
}
"""Settings that change the function of GPT-NeoX's Transformer layers, with the value that changes nothing. The official
Tokenformer layer reads none of them: it always adds both residuals, has no biases, GELU as score function only, and
flash attention of all heads scaled by 1/sqrt(head width)."""


class OfficialModel(NamedTuple):
    """What the settings of an official model say."""

    config: TokenformerConfig
    context_length: int | None
    ignored: dict[str, Any]
    """Settings of the file that ask for something, but not of a Tokenformer layer."""


def read_settings(path: Path) -> dict[str, Any]:
    """The keys and values of a NeoX-style YAML as written, with `_` for `-`. Nothing in it is resolved or called.

    Raises CheckpointError if it is not a file of settings.
    """
    if path.is_dir() or not path.exists():
        raise CheckpointError(
            f"{path} {'is a directory' if path.is_dir() else 'does not exist'}; --config names a YAML"
        )
    try:
        loaded = read_yaml(path)
    except (OSError, UserError) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path} is not a YAML file of settings: {why}") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path} is not a YAML file of settings: it has no keys")
    names: dict[str, Any] = {}
    for key, value in loaded.items():
        name = str(key).replace("-", "_")
        if name in names:
            raise CheckpointError(f"{path} has {names[name]} and {key}, which are the same key; keep one of them")
        if not _is_plain(value):
            raise CheckpointError(f"{path}: {key} is not plain data, such as text, numbers and lists")
        names[name] = key
    return {name: loaded[key] for name, key in names.items()}


def _is_plain(value: Any) -> bool:
    """Whether a checkpoint's manifest can hold `value`: YAML also has dates, bytes and halves of characters."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError):
        return False
    return True


def num_layers(settings: Mapping[str, Any], path: Path) -> int:
    """The number of layers in the settings in `path`. Raises CheckpointError if there is none."""
    return _count(settings, "num_layers", path)


def official_model(settings: Mapping[str, Any], path: Path, vocab_size: int) -> OfficialModel:
    """The model that the settings in `path` describe. GPT-NeoX pads its embedding to `vocab_size` rows.

    Raises CheckpointError if a setting changes the function in a way that growctl does not compute.
    """
    _check_supported(settings, path)
    counts = {key: _count(settings, key, path) for key in ("num_layers", "hidden_size", "num_attention_heads")}
    slots = {key: _count(settings, key, path) for key in ("qkv_slot_num", "proj_slot_num", "ffn_slot_num")}
    try:
        config = tokenformer_config(
            num_layers=counts["num_layers"],
            attention_tokens=slots["qkv_slot_num"],
            projection_tokens=slots["proj_slot_num"],
            ffn_tokens=slots["ffn_slot_num"],
            score_function=settings.get("norm_activation_type", "l2_norm_gelu"),
            vocab_size=vocab_size,
            hidden_size=counts["hidden_size"],
            num_heads=counts["num_attention_heads"],
            rotary_fraction=0.0 if settings["pos_emb"] == "none" else float(settings.get("rotary_pct", 1.0)),
            rotary_base=float(settings.get("rotary_emb_base", 10000)),
            norm_epsilon=float(settings.get("layernorm_epsilon", 1e-5)),
        )
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path} does not describe a model: {_first_problem(error)}") from error
    ignored = {
        key: settings[key] for key, none in IGNORED_BY_OFFICIAL_LAYERS.items() if settings.get(key, none) != none
    }
    return OfficialModel(config, _context_length(settings, path), ignored)


def official_settings(
    config: TokenformerConfig, context_length: int | None, tokenizer_vocab_size: int
) -> dict[str, Any]:
    """The settings with which the official code builds `config`, whose layers all have the same numbers of tokens."""
    block, rows = config.blocks[0], config.vocab_size
    pads_as_usual = rows % 128 == 0 and rows - tokenizer_vocab_size < 128
    base = config.rotary_base
    positions = (
        {"pos_emb": "rotary", "rotary_pct": config.rotary_fraction} if config.rotary_width else {"pos_emb": "none"}
    )
    length = {"seq_length": context_length, "max_position_embeddings": context_length} if context_length else {}
    return {
        "pipe_parallel_size": 1,
        "model_parallel_size": 1,
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_heads,
        "qkv_slot_num": block.query.num_tokens,
        "proj_slot_num": block.projection.num_tokens,
        "ffn_slot_num": block.ffn.num_tokens,
        **length,
        **positions,
        "rotary_emb_base": int(base) if base == int(base) else base,
        "no_weight_tying": False,
        "norm": "layernorm_nonparam",
        "final_norm": "layernorm",
        "layernorm_epsilon": config.norm_epsilon,
        "gpt_j_residual": False,
        "use_bias_in_attn_linear": False,
        "output_layer_parallelism": "column",
        "attention_config": [[["tokenformer"], config.num_layers]],
        "norm_activation_type": config.score_function,
        "hidden_dropout": 0,
        "attention_dropout": 0,
        "make_vocab_size_divisible_by": 128 if pads_as_usual else rows,
    }


def official_names(config: TokenformerConfig) -> dict[str, str]:
    """The names in the official flat state dict, by the names of a model with one generation."""
    names = {EMBEDDING: OFFICIAL_EMBEDDING}
    for i, block_id in enumerate(config.block_ids):
        for ours, theirs in _PATTENTIONS.items():
            for kind in TOKEN_KINDS:
                names[str(TokensName(block_id, ours, kind, 0))] = f"sequential.{i + 2}.{theirs}.{kind}_param_tokens"
    for part in ("weight", "bias"):
        names[f"{FINAL_NORM}.{part}"] = f"sequential.{config.num_layers + 3}.norm.{part}"
    return names


def rotary_buffers(config: TokenformerConfig) -> set[str]:
    """The names of the rotary frequencies, which GPT-NeoX saves under `rotary_save_freqs_buffer`."""
    return {f"sequential.{i + 2}.attention.rotary_emb.inv_freq" for i in range(config.num_layers)}


def _check_supported(settings: Mapping[str, Any], path: Path) -> None:
    for key, (default, allowed) in _SUPPORTED.items():
        value = settings.get(key)
        if (default if value is None else value) not in allowed:
            is_what = f"is not set, which means {default!r} to GPT-NeoX" if value is None else f"is {value!r}"
            raise CheckpointError(f"{path}: {key} {is_what}; growctl only supports {' or '.join(map(repr, allowed))}")
    _check_layers(settings, path)
    window, length = settings.get("sliding_window_width"), _context_length(settings, path)
    if window is not None and not (isinstance(window, int) and length and window >= length):
        raise CheckpointError(
            f"{path}: sliding_window_width is {window!r}; growctl only supports attention to all earlier tokens: none, "
            "or a width of seq_length or more"
        )
    prompt = settings.get("soft_prompt_tuning")
    if prompt and not (isinstance(prompt, dict) and prompt.get("enabled") is False):
        raise CheckpointError(f"{path}: soft_prompt_tuning is enabled; growctl only supports models without it")


def _check_layers(settings: Mapping[str, Any], path: Path) -> None:
    """Checks GPT-NeoX's types of layers: [[[type, ...], count or "all"], ...] or [type, ...]."""
    written, wanted = settings.get("attention_config"), _count(settings, "num_layers", path)
    if written is None:  # the tensors must tell
        return
    patterns = _layer_patterns(written, wanted)
    if patterns is None:
        raise CheckpointError(
            f"{path}: attention_config is {shorten(repr(written), 60)}; for {wanted} layers it must be "
            f"[[['tokenformer'], {wanted}]]"
        )
    if other := {kind for kinds, _ in patterns for kind in kinds} - {"tokenformer"}:
        raise CheckpointError(
            f"{path}: attention_config has {min(other)!r} layers; growctl only supports 'tokenformer'"
        )
    if (found := sum(len(kinds) * count for kinds, count in patterns)) != wanted:
        raise CheckpointError(f"{path}: the layers in attention_config add up to {found:,}; num_layers is {wanted}")


def _layer_patterns(written: Any, num_layers: int) -> list[tuple[list[str], int]] | None:
    """The types of layers and how often they are repeated; None if `written` does not have that form."""

    def are_types(value: Any) -> TypeGuard[list[str]]:
        return isinstance(value, list) and all(isinstance(kind, str) for kind in value)

    if are_types(written):
        return [(written, 1)]
    patterns: list[tuple[list[str], int]] = []
    for part in written if isinstance(written, list) else [None]:
        if not (isinstance(part, list) and len(part) == 2 and are_types(part[0]) and part[0]):
            return None
        count = max(num_layers // len(part[0]), 1) if part[1] == "all" else part[1]
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            return None
        patterns.append((part[0], count))
    return patterns


def _count(settings: Mapping[str, Any], key: str, path: Path) -> int:
    if key not in settings:
        raise CheckpointError(f"{path} lacks {key}")
    value = settings[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{path}: {key} is {value!r}; it must be a whole number, 1 or more")
    return value


def _context_length(settings: Mapping[str, Any], path: Path) -> int | None:
    """The length that the official rotary embedding accepts at most; it was trained on that length."""
    key = next((key for key in ("seq_length", "max_position_embeddings") if settings.get(key) is not None), None)
    return _count(settings, key, path) if key else None


def _first_problem(error: Exception) -> str:
    """One line: of pydantic's errors the first, with its field."""
    if not isinstance(error, ValidationError):
        return str(error).splitlines()[0]
    first = error.errors(include_url=False)[0]
    return ": ".join([*map(str, first["loc"]), first_reason(error)])
