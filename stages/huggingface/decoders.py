"""Decoders as classes of Transformers: options, keys of config.json, names and order of tensors.

One table serves both directions: an export writes what it says, an import reads it.

Shapes: D model width, E head width, H heads, N units.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from model.config import LanguageModelConfig
from model.decoder_config import DecoderConfig
from model.depth import WRITES_RESIDUAL
from model.errors import UserError
from model.parameter_names import CLASS_TOKEN, EMBEDDING, POSITIONS, PartName
from model.shapes import parameter_shapes


@dataclass(frozen=True)
class Architecture:
    """A class of Transformers as settings of a decoder."""

    name: str
    model_type: str
    options: dict[str, Any]
    """The options that each of its models has as a decoder."""

    keys: dict[str, tuple[str, ...]]
    """Keys of config.json, each with the decoder's options that are its value."""

    tensors: dict[str, str]
    """What it calls the parts of a block and those outside the blocks, by our names."""

    layers: str
    """What stands before the number of a layer."""

    buffers: tuple[str, ...]
    """Tensors of a layer that some files hold and that are no parameters."""

    constants: dict[str, Any]
    """Keys with a value that growctl's models always have."""

    defaults: dict[str, Any]
    """The values of keys that a config.json may leave out."""

    def tensor_names(self, config: DecoderConfig) -> dict[str, list[str]]:
        """Each of its tensors, with the names of our parameters that it consists of, in order."""
        names: dict[str, list[str]] = {}
        positions = {block_id: position for position, block_id in enumerate(config.block_ids)}
        for name in parameter_shapes(config):
            if part := PartName.parse(name):
                theirs = f"{self.layers}.{positions[part.block]}.{self.tensors[part.part]}.{part.kind}"
            else:
                module, _, kind = name.partition(".")
                theirs = self.tensors.get(name, f"{self.tensors[module]}.{kind}")
            names.setdefault(theirs, []).append(name)
        return names

    def buffer_names(self, config: DecoderConfig) -> set[str]:
        """The names of all `buffers`."""
        return {f"{self.layers}.{i}.{name}" for i in range(config.num_layers) for name in self.buffers}


_KEYS: dict[str, tuple[str, ...]] = {
    "vocab_size": ("vocab_size",),
    "hidden_size": ("hidden_size",),
    "intermediate_size": ("ffn_tokens",),
    "num_hidden_layers": ("num_layers",),
    "num_attention_heads": ("num_heads",),
    "tie_word_embeddings": ("tie_embeddings",),
}
_NO_BIAS = dict.fromkeys(("qkv_bias", "output_bias", "ffn_bias"), False)
_LAYER_NORM = {"norm": "layernorm", "activation": "gelu", "qk_norm": False, "ffn_bias": True}


def _gated(
    name: str,
    model_type: str,
    *,
    options: Mapping[str, Any] = MappingProxyType({}),
    keys: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    constants: Mapping[str, Any] = MappingProxyType({}),
    defaults: Mapping[str, Any],
) -> Architecture:
    """A class with RMSNorm and SwiGLU, whose tensors are called as a Llama's."""
    attention = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "projection": "o_proj"}
    norms = {"query_norm": "q_norm", "key_norm": "k_norm"}
    gated = {"norm": "rmsnorm", "activation": "swiglu", "parallel_residual": False, "rotary_fraction": 1.0}
    own = {"num_key_value_heads": ("num_kv_heads",), "head_dim": ("head_width",), "rms_norm_eps": ("norm_epsilon",)}
    return Architecture(
        name=name,
        model_type=model_type,
        options=gated | {"qk_norm": False, **options},
        keys={**_KEYS, **own, **keys},
        tensors={
            **{ours: f"self_attn.{theirs}" for ours, theirs in (attention | norms).items()},
            **{ours: f"mlp.{ours}_proj" for ours in ("gate", "up", "down")},
            "attention_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "embedding": "model.embed_tokens",
            "final_norm": "model.norm",
            "head": "lm_head",
        },
        layers="model.layers",
        buffers=("self_attn.rotary_emb.inv_freq",),
        constants={"hidden_act": "silu", **constants},
        defaults={"tie_word_embeddings": False, "rms_norm_eps": 1e-6, "head_dim": None, **defaults},
    )


_ATTENTION_BIAS: dict[str, tuple[str, ...]] = {"attention_bias": ("qkv_bias", "output_bias")}

ARCHITECTURES: tuple[Architecture, ...] = (
    _gated(
        "LlamaForCausalLM",
        "llama",
        keys={**_ATTENTION_BIAS, "mlp_bias": ("ffn_bias",)},
        defaults={"num_key_value_heads": None, "attention_bias": False, "mlp_bias": False},
    ),
    _gated(
        "MistralForCausalLM",
        "mistral",
        options=_NO_BIAS,
        constants={"sliding_window": None},
        defaults={"num_key_value_heads": 8},
    ),
    _gated(
        "Qwen2ForCausalLM",
        "qwen2",
        options=_NO_BIAS | {"qkv_bias": True},
        constants={"use_sliding_window": False},
        defaults={"num_key_value_heads": 32},
    ),
    _gated(
        "Qwen3ForCausalLM",
        "qwen3",
        options={"qk_norm": True, "ffn_bias": False},
        keys=_ATTENTION_BIAS,
        constants={"use_sliding_window": False},
        defaults={"num_key_value_heads": 32, "head_dim": 128, "attention_bias": False},
    ),
    Architecture(
        name="GPTNeoXForCausalLM",
        model_type="gpt_neox",
        options=_LAYER_NORM,
        keys=_KEYS
        | _ATTENTION_BIAS
        | {"layer_norm_eps": ("norm_epsilon",), "use_parallel_residual": ("parallel_residual",)},
        tensors={
            **dict.fromkeys(("query", "key", "value"), "attention.query_key_value"),
            "projection": "attention.dense",
            "up": "mlp.dense_h_to_4h",
            "down": "mlp.dense_4h_to_h",
            "attention_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "embedding": "gpt_neox.embed_in",
            "final_norm": "gpt_neox.final_layer_norm",
            "head": "embed_out",
        },
        layers="gpt_neox.layers",
        buffers=("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq"),
        constants={"hidden_act": "gelu"},
        defaults={
            "tie_word_embeddings": False,
            "layer_norm_eps": 1e-5,
            "use_parallel_residual": True,
            "attention_bias": True,
        },
    ),
)
"""The classes of text that growctl imports and exports. An export takes the first that has the model's options."""

VIT = Architecture(
    name="ViTForImageClassification",
    model_type="vit",
    options=_LAYER_NORM | {"parallel_residual": False, "output_bias": True, "image.pooling": "class_token"},
    keys={name: _KEYS[name] for name in _KEYS if name not in ("vocab_size", "tie_word_embeddings")}
    | {"image_size": ("image.size",), "patch_size": ("image.patch",), "num_channels": ("image.channels",)}
    | {"layer_norm_eps": ("norm_epsilon",), "qkv_bias": ("qkv_bias",)},
    tensors={part: f"attention.attention.{part}" for part in ("query", "key", "value")}
    | {"projection": "attention.output.dense", "up": "intermediate.dense", "down": "output.dense"}
    | {"attention_norm": "layernorm_before", "ffn_norm": "layernorm_after", "final_norm": "vit.layernorm"}
    | {POSITIONS: "vit.embeddings.position_embeddings", CLASS_TOKEN: "vit.embeddings.cls_token"}
    | {"embedding": "vit.embeddings.patch_embeddings.projection", "head": "classifier"},
    layers="vit.encoder.layer",
    buffers=(),
    constants={"hidden_act": "gelu"},
    defaults={},
)
"""The class that growctl exports decoders of images as. growctl does not import it."""


TRAINED_LENGTH = "original_max_position_embeddings"
ROPE_KEYS = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_turns",
        "high_freq_factor": "high_turns",
        TRAINED_LENGTH: "trained_length",
    },
}
"""The scalings that growctl imports and exports, with their keys in config.json and our names of them."""


def architecture_of(config: DecoderConfig) -> Architecture:
    """The class that computes a decoder. Raises UserError, with what the nearest class needs, if there is none."""
    candidates = ARCHITECTURES if config.image is None else (VIT,)
    lacks = {architecture.name: _lacks(architecture, config) for architecture in candidates}
    nearest = min(candidates, key=lambda architecture: len(lacks[architecture.name]))
    if missing := lacks[nearest.name]:
        needs = ", ".join(f"{name} {needed} instead of {attrgetter(name)(config)}" for name, needed in missing.items())
        raise UserError(f"no class of Transformers computes this decoder; the nearest, {nearest.name}, needs {needs}")
    return nearest


def _lacks(architecture: Architecture, config: DecoderConfig) -> dict[str, Any]:
    """The options that a model of this class must have and `config` has not, with the values that they need."""
    heads = config.num_heads
    needed = dict(architecture.options)
    for first, *others in architecture.keys.values():
        needed |= dict.fromkeys(others, attrgetter(first)(config))
    if architecture.model_type in ("gpt_neox", "vit"):
        needed |= {"num_kv_heads": heads, "head_width": config.hidden_size / heads}
    if architecture.model_type == "llama":  # Transformers refuses another, although the heads have a width of their own
        needed["hidden_size"] = math.ceil(config.hidden_size / heads) * heads
    return {name: value for name, value in needed.items() if attrgetter(name)(config) != value}


def rope_parameters(config: LanguageModelConfig) -> dict[str, Any]:
    """The rotary embedding as in a config.json. Raises UserError if Transformers has no such scaling."""
    rope = {"rope_theta": config.rotary_base, "partial_rotary_factor": config.rotary_fraction}
    scaling = config.rotary_scaling
    if scaling is None:
        return {"rope_type": "default"} | rope
    if scaling.kind not in ROPE_KEYS:
        raise UserError(f"rotary_scaling {scaling.kind} cannot be exported; {' and '.join(ROPE_KEYS)} can")
    return (
        {"rope_type": scaling.kind}
        | rope
        | {key: getattr(scaling, ours) for key, ours in ROPE_KEYS[scaling.kind].items()}
    )


def decoder_settings(config: DecoderConfig) -> dict[str, Any]:
    """The part of `config.json` that describes a decoder. Raises UserError as `architecture_of` does."""
    architecture = architecture_of(config)
    return {
        "model_type": architecture.model_type,
        "architectures": [architecture.name],
        **{key: attrgetter(options[0])(config) for key, options in architecture.keys.items()},
        **architecture.constants,
        "initializer_range": 0.02,
    }


@torch.no_grad()
def decoder_tensors(parameters: Mapping[str, Tensor], config: DecoderConfig) -> dict[str, Tensor]:
    """A decoder's `parameters` under the names of its class, the generations joined."""
    if image := config.image:  # a ViT's patches go through a convolution; its vectors have a dimension for the batch
        shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (-1, image.channels, image.patch, image.patch)}
        shapes |= {POSITIONS: (1, image.sequence_length, -1), CLASS_TOKEN: (1, 1, -1)}
        parameters = {name: value.view(shapes.get(name, value.shape)) for name, value in parameters.items()}
    return {
        name: _joined([parameters[each] for each in names], names, config.head_width)
        for name, names in architecture_of(config).tensor_names(config).items()
    }


def _joined(values: list[Tensor], names: list[str], head_width: int) -> Tensor:
    rows: dict[str, list[Tensor]] = {}
    for name, value in zip(names, values, strict=True):
        rows.setdefault(name.split(".")[-3] if PartName.parse(name) else "", []).append(value)
    parts = [torch.cat(each) if len(each) > 1 else each[0] for each in rows.values()]
    if len(parts) == 1:
        return parts[0].mT if _is_transposed(names[0]) else parts[0]
    return torch.stack([part.unflatten(0, (-1, head_width)) for part in parts], dim=1).flatten(0, 2)


def split_tensor(value: Tensor, names: list[str], head_width: int) -> list[Tensor]:
    """The parameters `names`, of one generation, in a tensor of their class: the inverse of joining them."""
    if len(names) == 1:
        return [value.mT if _is_transposed(names[0]) else value]
    return [part.flatten(0, 1) for part in value.unflatten(0, (-1, len(names), head_width)).unbind(1)]


def joined_shape(names: list[str], shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of the tensor that consists of the parameters `names`, of one generation."""
    rows, *rest = shapes[names[0]]
    return (rest[0], rows) if _is_transposed(names[0]) else (len(names) * rows, *rest)


def _is_transposed(name: str) -> bool:
    """Whether Transformers stores a matrix as (D, N), which growctl stores as (N, D)."""
    part = PartName.parse(name)
    return part is not None and part.part in WRITES_RESIDUAL and part.kind == "weight"
