"""Models of Transformers, imported, grown and exported: the logits stay. And imports that are refused."""

import importlib.metadata
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.decoder_config import DecoderConfig, decoder_config
from model.decoder_growth import widened_decoder
from model.growth import grow_model
from model.initialization import build_model
from model.language_model import LanguageModel
from model.policy import GrowthPolicy
from model.widening import widened
from stages.checkpoint.manifest import CheckpointError, verify_checkpoint
from stages.checkpoint.parameters import load_model
from stages.checkpoint.pretrained import load_pretrained
from stages.huggingface.importing import import_huggingface
from tests.pretrained import adding_tokenizer, byte_tokenizer
from tests.stages.huggingface.test_export import LLAMA, NO_BIAS, SIZES, export, pretrained_of

IDS_BT = torch.randint(261, (2, 24), generator=torch.Generator().manual_seed(0))
LENGTH = "original_max_position_embeddings"
SCALINGS: tuple[dict[str, Any], ...] = (
    {"rope_type": "default"},
    {"type": "linear", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, LENGTH: 16},
)
BOOLEANS = {
    "llama": ("attention_bias", "mlp_bias"),
    "qwen3": ("attention_bias",),
    "gpt_neox": ("attention_bias", "use_parallel_residual"),
}


def logits_in_transformers(model: Any) -> Tensor:
    """In float64, norms and rotary angles too, which Transformers computes in float32 whatever the model's type is."""
    double = patch.multiple(torch, float=torch.float64, float32=torch.float64)
    with double, patch.object(Tensor, "float", Tensor.double), torch.no_grad():
        base = model.double().base_model
        base.rotary_emb = type(base.rotary_emb)(model.config)
        logits: Tensor = model(IDS_BT).logits
        return logits


def logits_of(model: LanguageModel) -> Tensor:
    with torch.no_grad():
        return model(IDS_BT)


def equal(ours: Tensor, theirs: Tensor) -> None:
    assert ours.abs().max() > 0.5
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def randomized(model: Any, seed: int) -> Any:
    """`model` with other values in all its parameters, which float32 holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.randn(parameter.shape, generator=generator) * 0.2).to(parameter.dtype))
    return model


@st.composite
def keys(draw: st.DrawFn) -> dict[str, Any]:
    """The keys of a tiny config.json."""
    model_type = draw(st.sampled_from(["llama", "mistral", "qwen2", "qwen3", "gpt_neox"]))
    groups, is_neox = draw(st.sampled_from([1, 2])), model_type == "gpt_neox"
    heads = groups * draw(st.sampled_from([1, 2]))
    rope = {"rope_theta": draw(st.sampled_from([500.0, 10000.0])), **draw(st.sampled_from(SCALINGS))}
    if is_neox:
        rope["partial_rotary_factor"] = draw(st.sampled_from([0.25, 0.5, 1.0]))
    sizes = {"vocab_size": 270, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 20}
    return sizes | {
        "model_type": model_type,
        "num_attention_heads": heads,
        "max_position_embeddings": 64,
        **({} if is_neox else {"num_key_value_heads": groups, "head_dim": draw(st.sampled_from([8, 12, 32 // heads]))}),
        **({"sliding_window": draw(st.sampled_from([None, 64]))} if model_type == "mistral" else {}),
        **{name: draw(st.booleans()) for name in ("tie_word_embeddings", *BOOLEANS.get(model_type, ()))},
        "rope_parameters": rope,
    }


def grown_every_way(model: LanguageModel, heads: int) -> Iterator[LanguageModel]:
    """`model` after each growth that keeps the function, one on top of the other."""
    interleaved = GrowthPolicy(depth="interleave")
    ways: list[dict[str, Any]] = [{"ffn_tokens": 3}, {"new_layers": 2, "policy": interleaved}, {"new_layers": 1}]
    for way in ways + ([{"heads": heads, "ffn_tokens": 2}] if heads else []):
        model = grow_model(model, **way)
        yield model
    assert isinstance(model.config, DecoderConfig)
    wide = build_model(widened_decoder(model.config, 2)).double()
    old = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in wide.named_parameters():
            parameter.copy_(widened(name, old[name], model.config, 2))
    yield wide


def rewrite(path: Path, **changes: Any) -> None:
    """Changes keys of a JSON file; None removes one."""
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


def as_older_versions_write_it(path: Path) -> None:
    rope = json.loads(path.read_text())["rope_parameters"]
    names = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
    is_neox = "partial_rotary_factor" in rope
    older = {names[key] if is_neox else key: rope.pop(key) for key in names if key in rope}
    older = {key: value for key, value in older.items() if value not in (10000.0, 0.25)}  # the defaults
    scaling = {"rope_scaling": rope} if rope["rope_type"] != "default" else {}
    rewrite(path, rope_parameters=None, **older, **scaling)


@pytest.mark.slow  # importing Transformers takes most of the time
@settings(max_examples=15)
@given(keys(), st.booleans())
def test_a_model_keeps_its_logits_when_it_is_imported_grown_and_exported(tmp_path_factory, keys, is_old):
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("model")
    original = randomized(AutoModelForCausalLM.from_config(AutoConfig.for_model(**keys)), 1)
    original.save_pretrained(folder / "hf")
    if is_old:
        as_older_versions_write_it(folder / "hf" / "config.json")
    byte_tokenizer().save(str(folder / "hf" / "tokenizer.json"))
    expected = logits_in_transformers(original)
    import_huggingface(str(folder / "hf"), folder / "imported", check=False)
    pretrained = load_pretrained(folder / "imported", dtype=torch.float64)
    equal(logits_of(pretrained.model), expected)
    config = pretrained.model.config
    assert isinstance(config, DecoderConfig)
    needs_whole_heads = config.norm == "layernorm" or (not config.qk_norm and (config.output_bias or config.ffn_bias))
    models = grown_every_way(pretrained.model, 0 if needs_whole_heads else config.group_size)
    *_, last = (equal(logits_of(model), expected) or model for model in models)
    model = randomized(last, 2)
    manifest = pretrained.manifest.model_copy(update={"model": model.config})
    export(pretrained._replace(model=model, manifest=manifest), folder / "out")
    exported = AutoModelForCausalLM.from_pretrained(folder / "out", dtype=torch.float32)
    equal(logits_of(model), logits_in_transformers(exported))
    shutil.rmtree(folder)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """The folder of a model with tied embeddings, as Transformers saves it, in five shards."""
    config = decoder_config(**SIZES, **LLAMA, **NO_BIAS)
    export(pretrained_of(tmp_path, config), tmp_path / "llama", max_shard_bytes=25_000)
    shutil.rmtree(tmp_path / "checkpoint")
    return tmp_path / "llama"


def weights(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Path], None]:
    """Changes the tensors of the first shard."""

    def edit(folder: Path) -> None:
        file = min(folder.glob("*.safetensors"))
        state = load_file(file)
        change(state)
        save_file(state, file)

    return edit


MISTRAL = {"model_type": "mistral", "architectures": None}
QWEN = {"model_type": "qwen2", "architectures": None, "use_sliding_window": True, "sliding_window": 8}


def truncate(folder: Path) -> None:
    file = max(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "smollm3"}, "model_type is 'smollm3'; growctl imports llama, mistral, qwen2, qwen3, gpt_neox"),
        ({"model_type": "vit"}, "model_type is 'vit'; growctl imports llama"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "growctl imports LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; growctl computes only 'silu'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": "many"}, "vocab_size is 'many'; it must be a whole number above 0"),
        ({"num_key_value_heads": 3}, "num_heads 2 must be a multiple of num_kv_heads 3"),
        ({"tie_word_embeddings": 1}, "tie_embeddings is 1: Input should be a valid boolean"),
        ({"num_local_experts": 8}, "num_local_experts is 8, which growctl does not compute"),
        ({"no_rope_layers": [1, 0]}, "no_rope_layers is [1, 0], which growctl does not compute"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_type is 'yarn'; growctl computes default"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "a LlamaForCausalLM rotates whole heads"),
        ({"rope_parameters": {"full_attention": {}}}, "rope_parameters.full_attention is {}"),
        ({"rope_parameters": [1]}, "config.json: "),
        (MISTRAL | {"sliding_window": 16}, "sliding_window is 16, less than max_position_embeddings 32"),
        (QWEN | {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window is 8, less than"),
        (QWEN | {"max_window_layers": 1}, "sliding_window is 8, less than"),
        ({"intermediate_size": 65}, "gate_proj.weight has shape [64, 32], not [65, 32]"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not a JSON file"),
        (lambda folder: (folder / "config.json").unlink(), "is not a folder with a config.json"),
        (lambda folder: (folder / "model.safetensors.index.json").unlink(), "save_pretrained(FOLDER), and import"),
        (lambda folder: min(folder.glob("*.safetensors")).unlink(), "00001-of-00005.safetensors cannot be opened"),
        (truncate, "00005-of-00005.safetensors cannot be opened"),
        (weights(lambda state: state.pop(min(state))), "is missing"),
        (weights(lambda state: state.update(other=torch.ones(1))), "has other, which the model in"),
        (weights(lambda state: state.update({"lm_head.weight": torch.ones(1)})), "but tie_word_embeddings is true"),
        (weights(lambda state: state.update({min(state): state[min(state)].half() / 0})), "NaN or infinite"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "is not a tokenizer.json"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_that_cannot_be_imported_is_one_clear_error_and_nothing_is_left(llama, change, message):
    if callable(change):
        change(llama)
    else:
        rewrite(llama / "config.json", **change)
    with pytest.raises(CheckpointError) as refused:
        import_huggingface(str(llama), llama.parent / "imported")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [path.name for path in llama.parent.iterdir()] == ["llama"]


def test_an_import_records_its_text_and_that_transformers_did_not_check_it(llama, monkeypatch):
    def missing(_: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", missing)
    adding_tokenizer("b").save(str(llama / "tokenizer.json"))
    rewrite(llama / "config.json", eos_token_id=[999, 7])
    import_huggingface(str(llama), llama.parent / "imported")
    manifest = verify_checkpoint(llama.parent / "imported")
    assert manifest.lineage.imported.check.startswith("not checked: Transformers is not installed")
    text = manifest.text
    assert (text.context_length, text.tokenizer_vocab_size, manifest.model.vocab_size) == (32, 261, 270)
    begin = byte_tokenizer().token_to_id("b")
    assert (text.begin_of_text, text.begin_of_text_id, text.end_of_text_id) == ("b", begin, 7)
    drawn = build_model(manifest.model, seed=0).state_dict()
    assert all(torch.equal(drawn[name], p) for name, p in load_model(llama.parent / "imported").named_parameters())
