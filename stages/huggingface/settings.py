"""Reads a config.json of Transformers as a decoder; every key is accounted for.

The classes are those in stages/huggingface/decoders.py.
"""

from typing import Any

from model.config import RotaryScaling
from model.decoder_config import DecoderConfig, decoder_config
from stages.huggingface.decoders import ARCHITECTURES, ROPE_KEYS, TRAINED_LENGTH, Architecture

IGNORED = {
    *("architectures", "dtype", "is_llama_config", "model_type", "tokenizer_class", "torch_dtype", "use_cache"),
    *("_name_or_path", "transformers_version", "transformers.js_config", "unsloth_fixed", "unsloth_version"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "id2label", "label2id", "problem_type"),
    *("attention_dropout", "classifier_dropout", "hidden_dropout", "initializer_range", "return_dict"),
    *("max_window_layers", "pretraining_tp"),
    *("do_sample", "early_stopping", "length_penalty", "max_length", "max_new_tokens", "min_length", "num_beams"),
    *("num_beam_groups", "num_return_sequences", "repetition_penalty", "temperature", "top_k", "top_p", "typical_p"),
}
"""Keys that do not change what a model computes: dropout is for training, the rest for other tools."""

OPTIONAL = ("num_key_value_heads", "head_dim")
"""Sizes that may be null: then there are as many heads as queries have, of D / H dimensions."""

MOST_LAYERS = 1000

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", *OPTIONAL)


def read_settings(settings: dict[str, Any]) -> tuple[Architecture, DecoderConfig, int]:
    """The class and the decoder that a config.json describes, and the length of its context.

    Raises ValueError with the key and its value if growctl does not compute what it describes.
    """
    classes = {architecture.model_type: architecture for architecture in ARCHITECTURES}
    model_type = settings.get("model_type")
    if not isinstance(model_type, str) or model_type not in classes:
        raise ValueError(f"model_type is {model_type!r}; growctl imports {', '.join(classes)}")
    architecture = classes[model_type]
    if settings.get("architectures") not in (None, [architecture.name]):
        raise ValueError(f"architectures is {settings['architectures']}; growctl imports {architecture.name}")
    given = architecture.defaults | settings
    asked = [key for key in SIZES if key in architecture.keys and not (key in OPTIONAL and given[key] is None)]
    sizes = {key: _number(given, key) for key in asked}
    if sizes["num_hidden_layers"] > MOST_LAYERS:
        raise ValueError(f"num_hidden_layers is {sizes['num_hidden_layers']:,}; growctl reads at most {MOST_LAYERS:,}")
    length = _number(given, "max_position_embeddings")
    _drop_windows(given, architecture, sizes["num_hidden_layers"], length)
    options = architecture.options | _rotary(given, architecture, length)
    for key, names in architecture.keys.items():
        if key in sizes or key not in SIZES:
            options |= dict.fromkeys(names, sizes[key] if key in sizes else given.pop(key))
    for key, value in architecture.constants.items():
        if (found := given.pop(key, value)) != value:
            raise ValueError(f"{key} is {found!r}; growctl computes only {value!r} in a {architecture.name}")
    for key, value in given.items():
        if value and key not in IGNORED:  # what is off or empty changes nothing
            raise ValueError(
                f"{key} is {value!r}, which growctl does not compute in a {architecture.name}; if it changes nothing, "
                "remove the key"
            )
    return architecture, decoder_config(**options), length


def _number(given: dict[str, Any], key: str, types: Any = int) -> Any:
    """The number above 0 that `given` has under `key`, removed from it."""
    if key not in given:
        raise ValueError(f"{key} is missing")
    value = given.pop(key)
    if not isinstance(value, types) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"{key} is {value!r}; it must be a {'whole ' if types is int else ''}number above 0")
    return value


def _drop_windows(given: dict[str, Any], architecture: Architecture, num_layers: int, length: int) -> None:
    """Removes sliding windows that hold the whole context of `length`, or that no layer has."""
    if not {"sliding_window", "use_sliding_window"} & architecture.constants.keys():
        return
    window, kinds = given.pop("sliding_window", 4096), set(given.get("layer_types") or ())
    if architecture.model_type == "mistral":
        is_used = window is not None
    elif kinds:
        is_used = kinds != {"full_attention"}
    else:
        is_used = given.get("use_sliding_window", False) and given.get("max_window_layers", 28) < num_layers
    if is_used and (window is None or window < length):
        raise ValueError(
            f"sliding_window is {window}, less than max_position_embeddings {length}; growctl imports only attention "
            f"to all earlier tokens. For texts of up to {window} tokens, lower max_position_embeddings to that"
        )
    given.pop("use_sliding_window", None)
    if kinds <= {"full_attention", "sliding_attention"}:
        given.pop("layer_types", None)


def _rotary(given: dict[str, Any], architecture: Architecture, length: int) -> dict[str, Any]:
    """The decoder's rotary options, removed from `given`: `rope_parameters`, or what older versions have instead."""
    is_neox = architecture.model_type == "gpt_neox"
    scaling, parameters = given.pop("rope_scaling", None), given.pop("rope_parameters", None)
    older = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
    rope = {"rope_theta": 10000.0, "partial_rotary_factor": 0.25 if is_neox else 1.0}
    rope |= {key: given.pop(name if is_neox else key, rope[key]) for key, name in older.items()}
    for key, block in (("rope_scaling", scaling), ("rope_parameters", parameters)):
        if block is not None and not isinstance(block, dict):
            raise ValueError(f"{key} is {block!r}; it must be an object or null")
    rope |= scaling or parameters or {}
    rope |= {TRAINED_LENGTH: given.pop(TRAINED_LENGTH)} if TRAINED_LENGTH in given else {}
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    if kind not in ("default", *ROPE_KEYS):
        raise ValueError(f"rope_type is {kind!r}; growctl computes default, {' and '.join(ROPE_KEYS)}")
    options: dict[str, Any] = {"rotary_base": _number(rope, "rope_theta", int | float)}
    options["rotary_fraction"] = fraction = rope.pop("partial_rotary_factor")
    if fraction != architecture.options.get("rotary_fraction", fraction):
        raise ValueError(f"partial_rotary_factor is {fraction}; a {architecture.name} rotates whole heads")
    if kind != "default":
        factor = rope["factor"] = _number(rope, "factor", int | float)
        if not 1e-3 <= factor <= 1e6:
            raise ValueError(f"rope_parameters.factor is {factor:g}; it must be from 0.001 to 1e6")
        rope.setdefault(TRAINED_LENGTH, length if kind == "llama3" else max(1, round(length / factor)))
        names = ROPE_KEYS[kind] | {TRAINED_LENGTH: "trained_length"}
        numbers = {name: _number(rope, key, int | float) for key, name in names.items()}
        options["rotary_scaling"] = RotaryScaling.model_validate({"kind": kind, **numbers})
    if unknown := [key for key, value in rope.items() if value is not None]:
        raise ValueError(f"rope_parameters.{unknown[0]} is {rope[unknown[0]]!r}; rope_type {kind} has no such setting")
    return options
