"""Expanding checkpoints: append-only, exact, refused where it cannot be."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.config import Generation, TransformerConfig, generation_of, num_parameters, parameter_shapes
from stages.checkpoint import load_model, read_parameter
from stages.expand import expand
from stages.manifest import CheckpointError, hash_file, manifest_hash, parameter_file, read_manifest, verify_checkpoint
from tests.stages.checkpoints import small_config, write_checkpoint

IDS = torch.randint(0, 31, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def final(tmp_path):
    write_checkpoint(tmp_path / "final")
    return tmp_path / "final"


def test_the_grown_model_is_the_same_function(final, tmp_path):
    expand(final, tmp_path / "grown", attention_tokens=7, ffn_tokens=30)
    old, new = (load_model(path, dtype=torch.float64)(IDS) for path in (final, tmp_path / "grown"))
    torch.testing.assert_close(new, old, rtol=0, atol=1e-12)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=3))
def test_any_number_of_growths_in_a_row_keeps_the_function(final, tmp_path_factory, growths):
    folder = tmp_path_factory.mktemp("growths")
    path = final
    for i, (attention_tokens, ffn_tokens) in enumerate(growths):
        path, source = folder / str(i), path
        expand(source, path, attention_tokens=attention_tokens, ffn_tokens=ffn_tokens)
    old, new = (load_model(p, dtype=torch.float64)(IDS) for p in (final, path))
    torch.testing.assert_close(new, old, rtol=0, atol=1e-12)
    config = read_manifest(path).model
    assert config.blocks[1].ffn.num_tokens == 10 + sum(ffn for _, ffn in growths)


def test_old_files_are_hard_links_and_the_parent_is_untouched(final, tmp_path):
    parent = {name: hash_file(final / name) for name in (*read_manifest(final).files, "manifest.json")}
    manifest = expand(final, tmp_path / "grown", attention_tokens=7)
    assert {name: hash_file(final / name) for name in parent} == parent
    for name, entry in read_manifest(final).files.items():
        assert (final / name).stat().st_ino == (tmp_path / "grown" / name).stat().st_ino
        assert manifest.files[name] == entry
    assert verify_checkpoint(tmp_path / "grown") == manifest


def test_new_tokens_are_random_with_moments_of_zero_and_old_moments_are_kept(final, tmp_path):
    grown = tmp_path / "grown"
    manifest = expand(final, grown, attention_tokens=7)
    old_names = set(parameter_shapes(read_manifest(final).model))
    for name in parameter_shapes(manifest.model):
        state = read_parameter(grown, manifest, name)
        assert bool(state.exp_avg.any()) is bool(state.exp_avg_sq.any()) is (name in old_names)
        if name not in old_names:
            assert generation_of(name) == 1
            assert (state.fp32 != 0).all()
    assert manifest.group_steps == read_manifest(final).group_steps
    assert manifest.model.blocks[0].key.generations[1] == Generation(num_tokens=7, number=1, key_ramp=0.0)
    assert manifest.model.blocks[0].key.tau == math.sqrt(5)


def test_ffn_tokens_follow_the_models_own_proportion_unless_said(final, tmp_path):
    assert expand(final, tmp_path / "a", attention_tokens=7).model.blocks[0].ffn.num_tokens == 10 + 14
    assert expand(final, tmp_path / "b", attention_tokens=7, ffn_tokens=0).model.blocks[0].ffn.num_tokens == 10


def test_lineage_tells_parent_and_what_was_done(final, tmp_path):
    lineage = expand(final, tmp_path / "grown", attention_tokens=7, seed=9).lineage
    assert lineage.operation == "expand"
    assert lineage.parent == manifest_hash(final)
    assert lineage.details == {
        "attention_tokens": 7,
        "ffn_tokens": 14,
        "seed": 9,
        "num_parameters_before": num_parameters(small_config()),
        "num_parameters": num_parameters(read_manifest(tmp_path / "grown").model),
    }


def test_the_seed_decides_the_new_values(final, tmp_path):
    name = parameter_file("blocks.0.query.value_tokens.1")
    hashes = [
        expand(final, tmp_path / str(i), attention_tokens=7, seed=seed).files[name].sha256
        for i, seed in enumerate((1, 1, 2))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_bad_growth_is_refused_and_leaves_nothing(final, tmp_path):
    for arguments, message in [
        ({"attention_tokens": 0, "ffn_tokens": 0}, "growth adds 0 attention and 0 FFN tokens"),
        ({"attention_tokens": -3}, "growth adds -3"),
    ]:
        with pytest.raises(ValueError, match=message):
            expand(final, tmp_path / "grown", **arguments)
    with pytest.raises(CheckpointError, match="exists already"):
        expand(final, final, attention_tokens=4)
    with pytest.raises(CheckpointError, match="does not exist"):
        expand(tmp_path / "nowhere", tmp_path / "grown", attention_tokens=4)
    write_checkpoint(tmp_path / "softmax", small_config(score_function="softmax"))
    with pytest.raises(ValueError, match="softmax"):
        expand(tmp_path / "softmax", tmp_path / "grown", attention_tokens=4)
    transformer = TransformerConfig(vocab_size=31, hidden_size=16, num_heads=1, num_layers=1, ffn_size=64)
    write_checkpoint(tmp_path / "transformer", transformer)
    with pytest.raises(ValueError, match="only a tokenformer grows"):
        expand(tmp_path / "transformer", tmp_path / "grown", attention_tokens=4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["final", "softmax", "transformer"]


def test_a_truncated_checkpoint_is_refused(final, tmp_path):
    victim = final / parameter_file("embedding.weight")
    victim.write_bytes(victim.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=r"embedding\.weight\.safetensors has \d+ bytes"):
        expand(final, tmp_path / "grown", attention_tokens=4)
    assert not (tmp_path / "grown").exists()


def test_a_flipped_bit_is_found_when_the_value_is_read(final):
    victim = final / parameter_file("embedding.weight")
    data = bytearray(victim.read_bytes())
    data[-9] ^= 4
    victim.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"embedding\.weight\.safetensors does not have the hash"):
        load_model(final)
