"""Exporting to the official layout: the same tensors after a round trip, growth merged, and what it cannot hold."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml

from model.config import PattentionConfig, TokenformerConfig, TransformerConfig
from model.errors import UserError
from model.policy import GrowthPolicy, grow_config, ramp_config
from stages.checkpoint import load_model
from stages.checkpoint.disk_full import DiskFull
from stages.checkpoint.manifest import CheckpointError, read_manifest
from stages.grow.expand import expand
from stages.official.exporting import export_official
from stages.official.importing import import_official, open_weights
from tests.pretrained import byte_tokenizer, text_config, write_pretrained
from tests.stages.checkpoints import small_config, write_checkpoint
from tests.stages.official_checkpoints import official_state, write_official

OFFICIAL = GrowthPolicy.of("official")


def with_tau(config: TokenformerConfig, factor: float) -> TokenformerConfig:
    """`config` with every tau multiplied by `factor`."""

    def scaled(pattention: PattentionConfig) -> PattentionConfig:
        return pattention.model_copy(update={"tau": pattention.tau * factor})

    blocks = (
        block.model_copy(update={name: scaled(p) for name, p in block.pattentions().items()}) for block in config.blocks
    )
    return config.model_copy(update={"blocks": tuple(blocks)})


def reimported(source: Path, folder: Path) -> Path:
    """The checkpoint that an export of `source` is imported as."""
    export_official(source, folder / "out")
    import_official(folder / "out", folder / "out/official.yml", folder / "again")
    return folder / "again"


def logits(checkpoint: Path, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    model = load_model(checkpoint, dtype=dtype)
    ids = torch.arange(24).view(2, 12) % model.config.vocab_size
    with torch.no_grad():
        return model(ids)


def refusal(folder: Path, source: Path) -> str:
    with pytest.raises(UserError) as refused:
        export_official(source, folder / "out")
    assert not (folder / "out").exists()
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("name", ["model.bin", "model.safetensors"])
def test_import_and_export_give_the_same_tensors_byte_for_byte(tmp_path, name):
    import_official(*write_official(tmp_path, name=name), tmp_path / "imported")
    files = export_official(tmp_path / "imported", tmp_path / "out")
    assert set(files) == {"pytorch_model.bin", "official.yml"} == {path.name for path in (tmp_path / "out").iterdir()}
    exported, original = open_weights(tmp_path / "out"), official_state()
    assert set(exported) == set(original)
    for key, tensor in original.items():
        assert exported[key].dtype == tensor.dtype
        assert exported[key].numpy().tobytes() == tensor.numpy().tobytes(), key


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_import_of_half_precision_comes_back_byte_for_byte_in_that_precision(tmp_path, dtype):
    state = {key: tensor.to(dtype) for key, tensor in official_state().items()}
    import_official(*write_official(tmp_path, state), tmp_path / "imported")
    export_official(tmp_path / "imported", tmp_path / "out")
    exported = open_weights(tmp_path / "out")
    assert set(exported) == set(state)
    for key, tensor in state.items():
        assert exported[key].dtype == dtype
        assert torch.equal(exported[key].view(torch.int16), tensor.view(torch.int16)), key


def test_an_import_of_several_precisions_or_one_that_grew_is_exported_in_float32(tmp_path):
    half = {key: tensor.half() for key, tensor in official_state().items()}
    import_official(*write_official(tmp_path, half), tmp_path / "half")
    expand(tmp_path / "half", tmp_path / "grown", attention_tokens=4, ffn_tokens=8, policy=OFFICIAL, seed=1)
    key = next(iter(half))
    import_official(*write_official(tmp_path, half | {key: half[key].float()}), tmp_path / "mixed")
    for name in ("grown", "mixed"):
        export_official(tmp_path / name, tmp_path / f"{name}-out")
        assert {tensor.dtype for tensor in open_weights(tmp_path / f"{name}-out").values()} == {torch.float32}


@pytest.mark.parametrize("name", ["tiny", "tiny_gelu_l2", "tiny_softmax"])
def test_the_reference_models_come_back_byte_for_byte_with_their_settings(shared, tmp_path, name):
    folder = shared / "vectors" / "tokenformer"
    import_official(folder / f"{name}.bin", folder / f"{name}.yml", tmp_path / "imported")
    export_official(tmp_path / "imported", tmp_path / "out")
    exported, original = open_weights(tmp_path / "out"), open_weights(folder / f"{name}.bin")
    assert {key: value.numpy().tobytes() for key, value in exported.items()} == {
        key: value.numpy().tobytes() for key, value in original.items()
    }
    written = yaml.safe_load((tmp_path / "out/official.yml").read_text())
    assert written.items() >= yaml.safe_load((folder / f"{name}.yml").read_text()).items()


def test_export_and_import_give_the_same_parameters_text_and_tokenizer(tmp_path):
    write_pretrained(tmp_path / "final", text_config(vocab_size=264, num_heads=2))
    export_official(tmp_path / "final", tmp_path / "out")
    import_official(
        tmp_path / "out", tmp_path / "out/official.yml", tmp_path / "again", tokenizer=tmp_path / "out/tokenizer.json"
    )
    before, after = read_manifest(tmp_path / "final"), read_manifest(tmp_path / "again")
    assert after.model == before.model
    assert after.text == before.text.model_copy(update={"source": None})
    assert torch.equal(logits(tmp_path / "again"), logits(tmp_path / "final"))
    settings = yaml.safe_load((tmp_path / "out/official.yml").read_text())
    assert (settings["tokenizer_type"], settings["vocab_file"]) == ("HFTokenizer", "./tokenizer.json")
    (tmp_path / "out/tokenizer.json").write_text("{}")  # an export shares no file with its checkpoint
    assert (tmp_path / "final/tokenizer.json").read_text() == byte_tokenizer().to_str()


@pytest.mark.parametrize("policy", [OFFICIAL, GrowthPolicy(init="copy", tau="recompute")], ids=["official", "copy"])
def test_generations_are_joined_into_the_same_function(tmp_path, policy):
    write_checkpoint(tmp_path / "final", small_config(num_heads=2))
    expand(tmp_path / "final", tmp_path / "grown", attention_tokens=5, policy=policy)
    again = reimported(tmp_path / "grown", tmp_path)
    assert len(read_manifest(again).model.blocks[0].query.generations) == 1
    torch.testing.assert_close(logits(again), logits(tmp_path / "grown"), rtol=0, atol=1e-12)


def test_a_growth_whose_ramp_is_finished_is_the_official_function_again(tmp_path):
    grown = grow_config(small_config(num_heads=2), attention_tokens=5, ffn_tokens=10)
    write_checkpoint(tmp_path / "final", ramp_config(grown, 1.0))
    assert torch.equal(logits(reimported(tmp_path / "final", tmp_path)), logits(tmp_path / "final"))


@pytest.mark.parametrize("score_function", ["gelu_l2_norm", "softmax"])
def test_another_tau_is_multiplied_into_the_values_where_that_is_the_same_function(tmp_path, score_function):
    write_checkpoint(tmp_path / "final", with_tau(small_config(num_heads=2, score_function=score_function), 0.5))
    again = reimported(tmp_path / "final", tmp_path)
    assert read_manifest(again).model == small_config(num_heads=2, score_function=score_function).model_copy(
        update={"vocab_size": 31}
    )
    torch.testing.assert_close(logits(again), logits(tmp_path / "final"), rtol=0, atol=1e-12)


def test_a_tau_inside_gelu_is_refused_with_a_way_out(tmp_path):
    write_checkpoint(tmp_path / "final", with_tau(small_config(), 0.5))
    message = refusal(tmp_path, tmp_path / "final")
    assert "blocks.0.query has tau 1.11803, not the 2.23607 of its 5 tokens. Export it with `--to hugg" in message


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (GrowthPolicy(), "the ramp of blocks.0.query is not finished"),
        (GrowthPolicy(init="zero-key", tau="frozen"), "blocks.0.query has tau 2.23607, not the"),
        (
            GrowthPolicy(init="zero-value", tau="per-generation"),
            "blocks.0.query normalises a generation by itself",
        ),
    ],
)
def test_a_growth_that_the_layout_cannot_hold_is_refused_by_name(tmp_path, policy, message):
    write_checkpoint(tmp_path / "final")
    expand(tmp_path / "final", tmp_path / "grown", attention_tokens=5, policy=policy)
    assert message in refusal(tmp_path, tmp_path / "grown")


def test_a_model_that_grew_in_depth_is_exported_in_the_order_of_its_layers(tmp_path):
    write_checkpoint(tmp_path / "final", small_config(num_heads=2))
    expand(tmp_path / "final", tmp_path / "grown", new_layers=2, policy=GrowthPolicy(depth="interleave"))
    again = reimported(tmp_path / "grown", tmp_path)
    assert read_manifest(tmp_path / "grown").model.block_ids == (0, 2, 1, 3)
    assert read_manifest(again).model.block_ids == (0, 1, 2, 3)
    assert torch.equal(logits(again), logits(tmp_path / "final"))


def test_a_model_without_layers_is_refused(tmp_path):
    write_checkpoint(tmp_path / "final", small_config(num_layers=0))
    assert "it has no layers, and needs at least one" in refusal(tmp_path, tmp_path / "final")


def test_layers_of_different_sizes_are_refused(tmp_path):
    write_checkpoint(tmp_path / "final")
    expand(tmp_path / "final", tmp_path / "grown", attention_tokens=(0, 5), policy=OFFICIAL)
    message = refusal(tmp_path, tmp_path / "grown")
    assert "blocks.1.query has 10 tokens, but others have 5; grow all layers alike" in message


def test_a_transformer_is_refused(tmp_path):
    write_checkpoint(
        tmp_path / "final", TransformerConfig(vocab_size=31, hidden_size=16, num_heads=1, num_layers=1, ffn_size=8)
    )
    assert "it is a transformer" in refusal(tmp_path, tmp_path / "final")


def test_a_model_that_attends_within_documents_is_refused(tmp_path):
    write_checkpoint(tmp_path / "final", small_config().model_copy(update={"document_end_id": 0}))
    message = refusal(tmp_path, tmp_path / "final")
    assert "it attends within documents only (data.document_mask)" in message


def test_a_broken_checkpoint_an_existing_output_and_a_full_disk_leave_nothing_behind(tmp_path, monkeypatch):
    write_pretrained(tmp_path / "final")
    (tmp_path / "there").mkdir()
    with pytest.raises(CheckpointError, match="there already exists"):
        export_official(tmp_path / "final", tmp_path / "there")
    damaged = tmp_path / "final/parameters/final_norm.bias.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CheckpointError, match=r"final_norm\.bias\.safetensors does not have the hash"):
        export_official(tmp_path / "final", tmp_path / "out")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12, 1000))
    with pytest.raises(DiskFull, match="nothing was written"):
        export_official(tmp_path / "final", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["final", "there"]
