"""The layout of the official PyTorch code (Haiyang-W/TokenFormer, on GPT-NeoX): its settings and parameter names.

Imports no torch. Statements about the official code hold for its commit 4d56c73 of February 2025, where
`megatron/model/gpt2_model.py` builds the model from the layers in `megatron/model/tokenformer.py`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator

from model.errors import UserError
from model.parameter_names import EMBEDDING, FINAL_NORM, TOKEN_KINDS, PartName
from model.strict import problem_of
from model.tokenformer_config import ScoreFunction, TokenformerConfig, tokenformer_config
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


class OfficialSettings(BaseModel):
    """The settings of a NeoX-style YAML that describe a model. Those that change the function of an official
    Tokenformer layer allow only what growctl computes; GPT-NeoX's default is the first where it is not allowed."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    num_layers: PositiveInt
    hidden_size: PositiveInt
    num_attention_heads: PositiveInt
    qkv_slot_num: PositiveInt
    proj_slot_num: PositiveInt
    ffn_slot_num: PositiveInt
    seq_length: PositiveInt | None = None
    max_position_embeddings: PositiveInt | None = None
    pos_emb: Literal["rotary", "none"]
    """Required: without it, GPT-NeoX learns positions."""
    norm: Literal["layernorm_nonparam"]
    """Required: without it, GPT-NeoX's norms have parameters."""
    final_norm: Literal["layernorm"]
    """Required: without it, GPT-NeoX takes `norm`."""
    norm_activation_type: ScoreFunction = "l2_norm_gelu"
    rotary_pct: float = 1.0
    rotary_emb_base: int | float = 10000
    layernorm_epsilon: float = 1e-5
    no_weight_tying: Literal[False] = False
    use_mup: Literal[False] = False
    transformer_increase_dim: Literal[0] = 0
    model_parallel_size: Literal[1] = 1
    attention_config: list[Any] = ["tokenformer"]
    """GPT-NeoX's types of layers: [[[type, ...], count or "all"], ...] or [type, ...]."""
    sliding_window_width: int | None = None
    soft_prompt_tuning: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if other := set(_strings(self.attention_config)) - {"tokenformer", "all"}:
            raise ValueError(f"attention_config has {min(other)!r} layers; growctl only supports 'tokenformer'")
        window, length = self.sliding_window_width, self.context_length
        if window is not None and not (length and window >= length):
            raise ValueError(f"sliding_window_width is {window}; growctl imports only attention to all earlier tokens")
        if self.soft_prompt_tuning.get("enabled", bool(self.soft_prompt_tuning)):
            raise ValueError("soft_prompt_tuning is enabled; growctl only supports models without it")
        return self

    @property
    def context_length(self) -> int | None:
        """The length that the official rotary embedding accepts at most; it was trained on that length."""
        return self.seq_length or self.max_position_embeddings

    def model(self, vocab_size: int) -> TokenformerConfig:
        """The model, whose embedding GPT-NeoX pads to `vocab_size` rows. Raises ValueError if there is no such one."""
        return tokenformer_config(
            num_layers=self.num_layers,
            attention_tokens=self.qkv_slot_num,
            projection_tokens=self.proj_slot_num,
            ffn_tokens=self.ffn_slot_num,
            score_function=self.norm_activation_type,
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            num_heads=self.num_attention_heads,
            rotary_fraction=0.0 if self.pos_emb == "none" else self.rotary_pct,
            rotary_base=self.rotary_emb_base,
            norm_epsilon=self.layernorm_epsilon,
        )


def _strings(value: Any) -> Iterator[str]:
    """All text in nested lists."""
    if isinstance(value, str):
        yield value
    for part in value if isinstance(value, list) else ():
        yield from _strings(part)


def read_settings(path: Path) -> OfficialSettings:
    """The settings in a NeoX-style YAML, with `_` for `-` in their names. Nothing in it is resolved or called.

    Raises CheckpointError, with the key and its value, if it describes no model that growctl computes.
    """
    try:
        values = read_yaml(path)
    except (OSError, UserError) as error:
        why = getattr(error, "strerror", None) or error
        raise CheckpointError(f"{path} is not a YAML file of settings: {why}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is not a YAML file of settings: it has no keys")
    given = {str(key).replace("-", "_"): value for key, value in values.items() if value is not None}
    try:
        return OfficialSettings.model_validate(given)
    except ValidationError as error:
        raise CheckpointError(f"{path}: {problem_of(error)}") from error


def official_names(config: TokenformerConfig) -> dict[str, str]:
    """The names in the official flat state dict, by the names of a model with one generation."""
    names = {EMBEDDING: OFFICIAL_EMBEDDING}
    for i, block_id in enumerate(config.block_ids):
        for ours, theirs in _PATTENTIONS.items():
            for kind in TOKEN_KINDS:
                official = kind.replace("_", "_param_")
                names[str(PartName(block_id, ours, kind, 0))] = f"sequential.{i + 2}.{theirs}.{official}"
    for part in ("weight", "bias"):
        names[f"{FINAL_NORM}.{part}"] = f"sequential.{config.num_layers + 3}.norm.{part}"
    return names


def rotary_buffers(config: TokenformerConfig) -> set[str]:
    """The names of the rotary frequencies, which GPT-NeoX saves under `rotary_save_freqs_buffer`."""
    return {f"sequential.{i + 2}.attention.rotary_emb.inv_freq" for i in range(config.num_layers)}
