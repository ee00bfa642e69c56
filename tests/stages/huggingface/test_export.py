"""What an export to Hugging Face consists of, and how it fails. None of these tests loads it in Transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from model.config import ImageInput, RotaryScaling
from model.config_growth import grow_config, ramp_config
from model.decoder_config import decoder_config
from model.errors import UserError
from model.policy import GrowthPolicy
from model.shapes import ModelConfig
from model.tokenformer_config import Routing, TokenformerConfig
from stages.checkpoint.pretrained import Pretrained, load_pretrained
from stages.huggingface import export as exporting
from stages.huggingface import same_logits
from stages.huggingface.export import export_huggingface
from stages.huggingface.record import HuggingFaceExport, LogitsCheck
from stages.huggingface.same_logits import LogitsDiffer
from tests.pretrained import text_config, write_pretrained

SIZES = {"vocab_size": 270, "hidden_size": 32, "num_heads": 2, "num_layers": 2, "ffn_tokens": 64}
LLAMA: dict[str, Any] = {"norm": "rmsnorm", "activation": "swiglu", "rotary_fraction": 1.0}
NO_BIAS: dict[str, Any] = dict.fromkeys(("qkv_bias", "output_bias", "ffn_bias"), False)
MEAN = ImageInput(size=8, patch=4, pooling="mean")
COPIES = GrowthPolicy(init="copy", tau="recompute")
OWN_NORM = GrowthPolicy(init="zero-value", tau="per-generation", depth="interleave")


def half_ramped() -> TokenformerConfig:
    """A model that has grown once; its new keys have reached 0.3 of their weight."""
    grown = grow_config(text_config(vocab_size=270), attention_tokens=3, ffn_tokens=4)
    assert isinstance(grown, TokenformerConfig)
    return ramp_config(grown, 0.3)


def pretrained_of(folder: Path, config: ModelConfig) -> Pretrained:
    write_pretrained(folder / "checkpoint", config)
    return load_pretrained(folder / "checkpoint")


@pytest.fixture
def pretrained(tmp_path: Path) -> Pretrained:
    return pretrained_of(tmp_path, half_ramped())


def export(pretrained: Pretrained, directory: Path, check: bool = False, **options) -> HuggingFaceExport:
    return export_huggingface(pretrained, directory, card=lambda _: "# card\n", check=check, **options)


def settings_in(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    parts = [safetensors.torch.load_file(file) for file in sorted(folder.glob("*.safetensors"))]
    return {name: tensor for part in parts for name, tensor in part.items()}


def test_weights_in_bfloat16_are_checked_before_rounding_and_split_by_size(pretrained, tmp_path, monkeypatch):
    exact: dict[str, torch.Tensor] = {}

    def check(directory: Path, *_, **__) -> LogitsCheck:
        exact.update(weights_in(directory))
        return LogitsCheck(transformers="5.19", largest_difference=0.0, allowed=1e-5)

    monkeypatch.setattr("stages.huggingface.export.check_logits", check)
    told = export(pretrained, tmp_path / "out", check=True, dtype="bfloat16", max_shard_bytes=4000)
    weights, index = weights_in(tmp_path / "out"), json.loads((tmp_path / "out" / exporting.INDEX_NAME).read_text())
    assert torch.equal(exact["model.embed_tokens.weight"], pretrained.model.embedding.weight)
    assert {name: exact[name].bfloat16().tolist() for name in exact} == {n: w.tolist() for n, w in weights.items()}
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert index["weight_map"].keys() == weights.keys()
    assert told.num_weight_files == len(set(index["weight_map"].values())) == 3
    assert told.weight_bytes == index["metadata"]["total_size"] == sum(2 * w.numel() for w in weights.values())
    assert settings_in(tmp_path / "out")["dtype"] == "bfloat16"
    assert sorted(told.files) == sorted(path.name for path in (tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (text_config(num_layers=0), "has no layers, and an export to Hugging Face needs at least one"),
        (text_config(attention_tokens=4, ffn_tokens=4, routing=Routing(groups=2, read=1)), "reads its tokens in part"),
        (text_config().model_copy(update={"document_end_id": 0}), r"within documents only \(data\.document_mask\)"),
        (text_config().model_copy(update={"attention_window": 8}), r"within windows only \(model\.attention_window\)"),
        (text_config(), "there already exists; choose another directory"),
        (decoder_config(**SIZES, **LLAMA | {"activation": "relu2"}), "LlamaForCausalLM, needs activation swiglu"),
        (decoder_config(**SIZES, **LLAMA | {"norm": "layernorm"}), "needs norm rmsnorm instead of layernorm"),
        (decoder_config(**SIZES, **LLAMA | {"rotary_fraction": 0.5}), r"needs rotary_fraction 1\.0 instead of 0\.5"),
        (
            decoder_config(**SIZES, **LLAMA | NO_BIAS | {"output_bias": True}),
            "LlamaForCausalLM, needs output_bias False",
        ),
        (decoder_config(**SIZES, **LLAMA, qk_norm=True), "LlamaForCausalLM, needs qk_norm False instead of True"),
        (decoder_config(**SIZES, num_kv_heads=1), "GPTNeoXForCausalLM, needs num_kv_heads 2 instead of 1"),
        (grow_config(decoder_config(**SIZES), heads=1), r"GPTNeoXForCausalLM, needs head_width 10\.6.* instead of 16"),
        (
            decoder_config(**SIZES, image=MEAN, norm="rmsnorm", activation="swiglu", num_kv_heads=1, ffn_bias=False),
            r"ViTForImageClassification, needs norm layernorm instead of rmsnorm, activation gelu .*, ffn_bias True .* "
            r"image\.pooling class_token instead of mean, num_kv_heads 2 instead of 1$",
        ),
        (
            decoder_config(**SIZES, rotary_scaling=RotaryScaling(kind="yarn", factor=2.0, trained_length=16)),
            "rotary_scaling yarn cannot be exported; linear and llama3 can",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(tmp_path, config, message):
    pretrained = pretrained_of(tmp_path, config)
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match=message):
        export(pretrained, tmp_path / ("there" if "there" in message else "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "there"]


def test_an_export_that_computes_other_logits_is_removed(pretrained, tmp_path, monkeypatch):
    monkeypatch.setattr(same_logits.importlib.metadata, "version", lambda _: "5.19.0")
    monkeypatch.setattr(same_logits, "_logits_of", lambda _, inputs, *__: torch.zeros(*inputs["input_ids"].shape, 270))
    with pytest.raises(LogitsDiffer, match=r"differ from growctl's by up to 0\.\d+; at most 1e-05 is allowed"):
        export(pretrained, tmp_path / "out", check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
