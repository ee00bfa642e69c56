"""Expanding checkpoints appends only, is exact, and rejects impossible sizes."""

import itertools
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stages.checkpoint.parameters
from model.decoder_config import decoder_config
from model.depth import COPYING
from model.errors import UserError
from model.initialization import build_model
from model.parameter_names import generation_of
from model.policy import GrowthPolicy
from model.shapes import num_parameters, parameter_shapes
from model.tokenformer_config import Routing
from stages.checkpoint.disk_full import DiskFull
from stages.checkpoint.files import hash_file
from stages.checkpoint.lineage import GrowthRecord
from stages.checkpoint.manifest import CheckpointError, manifest_hash, parameter_file, read_manifest, verify_checkpoint
from stages.checkpoint.parameters import fill_model, load_model, read_parameter, write_parameter
from stages.grow.expand import expand, shrink
from tests.stages.checkpoints import small_config, write_checkpoint
from tests.stages.grow.test_compare import rewrite

IDS = torch.randint(0, 31, (2, 12), generator=torch.Generator().manual_seed(0))
COPY, INTERLEAVE = GrowthPolicy(init="copy", tau="recompute"), GrowthPolicy(depth="interleave")
STACK, MIDDLE = (GrowthPolicy(depth=depth, allow_jump=True) for depth in COPYING)
DECODER = decoder_config(vocab_size=31, hidden_size=16, num_heads=1, num_layers=1, ffn_tokens=64)
POLICIES = [
    *(GrowthPolicy(), INTERLEAVE, GrowthPolicy(init="zero-value", tau="per-generation", depth="interleave")),
    GrowthPolicy(init="zero-key", tau="frozen"),
]


def hashes(directory: Path) -> dict[str, str]:
    return {path.relative_to(directory).as_posix(): hash_file(path) for path in directory.rglob("*") if path.is_file()}


def inodes(directory: Path) -> dict[str, int]:
    return {name: (directory / name).stat().st_ino for name in read_manifest(directory).files}


@pytest.fixture
def final(tmp_path):
    write_checkpoint(tmp_path / "final")
    return tmp_path / "final"


@pytest.mark.slow
@settings(max_examples=8)
@given(
    base=st.sampled_from([*(small_config(num_layers=n) for n in range(3)), DECODER]),
    growths=st.lists(
        st.tuples(st.sampled_from(POLICIES), st.integers(0, 9), st.integers(0, 9), st.integers(0, 2)), max_size=3
    ),
)
def test_growths_keep_the_function_and_shrink_undoes_them_one_by_one_or_at_once(tmp_path_factory, base, growths):
    folder = tmp_path_factory.mktemp("growths")
    paths = [folder / "base"]
    write_checkpoint(paths[0], base)
    for policy, attention, ffn, new_layers in growths:
        old = read_manifest(paths[-1])
        attention, ffn = (attention, ffn) if old.model.num_layers else (0, 0)
        new_layers = new_layers or int(not (attention or ffn))
        size = (3, 4) if new_layers and base is not DECODER else None
        tokens: dict[str, Any] = {"heads" if base is DECODER else "attention_tokens": attention, "ffn_tokens": ffn}
        paths.append(folder / str(len(paths)))
        manifest = expand(paths[-2], paths[-1], new_layers=new_layers, layer_tokens=size, policy=policy, **tokens)
        assert verify_checkpoint(paths[-1]) == manifest
        assert inodes(paths[-2]).items() <= inodes(paths[-1]).items()
        assert old.files.items() <= manifest.files.items()
        before, after = (load_model(path, dtype=torch.float64)(IDS) for path in paths[-2:])
        torch.testing.assert_close(after, before, rtol=0, atol=1e-12)
    for number in range(1, len(paths)):
        shrink(paths[-1], folder / f"back-{number}", drop_generations=number)
        back, expected = folder / f"back-{number}", paths[-1 - number]
        assert inodes(back) == inodes(expected)
        a, b = read_manifest(back), read_manifest(expected)
        assert (a.model, a.files, a.group_steps, a.samples_seen) == (b.model, b.files, b.group_steps, b.samples_seen)


def test_using_the_child_never_changes_the_parent(final, tmp_path):
    """The two share files, so a write into one would change the other."""
    before, grown = hashes(final), tmp_path / "grown"
    expand(final, grown, attention_tokens=7)
    shrink(grown, tmp_path / "shrunk")
    manifest = read_manifest(grown)
    filled, loaded = build_model(manifest.model), load_model(grown)
    fill_model(filled, grown, manifest)
    with torch.no_grad():
        for parameter in (*filled.parameters(), *loaded.parameters()):
            parameter.zero_()
    assert hashes(final) == before
    write_parameter(grown, "embedding.weight", torch.zeros(31, 16))
    assert hashes(final) == before != hashes(grown)


def test_without_hard_links_the_copies_are_complete_and_equal(final, tmp_path, monkeypatch):
    def across_file_systems(source, target):
        raise OSError(18, "Invalid cross-device link")

    before = hashes(final)
    monkeypatch.setattr(os, "link", across_file_systems)
    manifest = expand(final, tmp_path / "grown", attention_tokens=7)
    shrink(tmp_path / "grown", tmp_path / "shrunk")
    for directory in (tmp_path / "grown", tmp_path / "shrunk"):
        assert not set(inodes(final).values()) & set(inodes(directory).values())
        assert verify_checkpoint(directory).files.items() >= read_manifest(final).files.items()
    assert verify_checkpoint(tmp_path / "grown") == manifest
    assert hashes(final) == before


def test_an_old_token_that_was_corrupted_is_not_copied(final, tmp_path):
    data = bytearray((path := final / parameter_file("blocks.1.value.key_tokens.0")).read_bytes())
    data[-9] ^= 4
    path.write_bytes(data)
    message = r"blocks\.1\.value\.key_tokens\.0\.safetensors does not have the hash"
    for read in (lambda: expand(final, tmp_path / "again", attention_tokens=5, policy=COPY), lambda: load_model(final)):
        with pytest.raises(CheckpointError, match=message):
            read()
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


@pytest.mark.parametrize(("stops_at", "failure"), [(5, DiskFull), (None, KeyboardInterrupt)])
def test_a_failure_waits_for_writes_in_progress_and_leaves_nothing(final, tmp_path, monkeypatch, stops_at, failure):
    write, before, calls, writing = stages.checkpoint.parameters.write_file, hashes(final), itertools.count(1), []
    seen: list[tuple[int, ...]] = []

    def slow(path: Path, *parts):
        if next(calls) == stops_at:
            raise OSError(28, "No space left on device")
        writing.append(path)
        time.sleep(0.05)
        entry = write(path, *parts)
        writing.remove(path)
        return entry

    def interrupted(*counts: int) -> None:
        seen.append(counts)
        if not stops_at and len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(stages.checkpoint.parameters, "write_file", slow)
    with pytest.raises(failure):
        expand(final, tmp_path / "grown", attention_tokens=7, on_progress=interrupted)
    assert writing == []
    assert seen == [(done + 1, 20) for done in range(len(seen))]
    assert [path.name for path in tmp_path.iterdir()] == ["final"]
    assert hashes(final) == before


def test_shrink_after_training_drops_only_the_new_groups_steps(final, tmp_path):
    manifest = expand(final, tmp_path / "grown", attention_tokens=7)
    steps = {name.replace("-0-", f"-{number}-"): 11 - number for name in manifest.group_steps for number in (0, 1)}
    rewrite(tmp_path / "grown", group_steps=steps)
    assert shrink(tmp_path / "grown", tmp_path / "shrunk").group_steps == read_manifest(final).group_steps


@pytest.mark.parametrize(
    ("arguments", "growth"),
    [
        ({"attention_tokens": 7}, {"attention_tokens": 7, "ffn_tokens": 14, "policy": GrowthPolicy()}),
        ({"new_layers": 2, "policy": INTERLEAVE}, {"new_layers": 2, "new_layer_positions": [1, 3]}),
        ({"new_layers": 2, "policy": STACK}, {"new_layers": 2, "new_layer_positions": [2, 3], "preserves": False}),
        ({"new_layers": 1, "policy": MIDDLE}, {"new_layers": 1, "new_layer_positions": [1], "preserves": False}),
    ],
)
def test_lineage_records_the_growth_and_new_parameters_have_moments_of_zero(final, tmp_path, arguments, growth):
    manifest, old = expand(final, tmp_path / "grown", seed=9, **arguments), read_manifest(final)
    assert (manifest.lineage.operation, manifest.lineage.parent) == ("expand", manifest_hash(final))
    no_tokens = {"attention_tokens": 0, "ffn_tokens": 0, "preserves": True, "seed": 9}
    assert manifest.lineage.growth == GrowthRecord(**(no_tokens | arguments | growth))
    counts = [entry.num_parameters for entry in manifest.lineage.history]
    assert counts == [num_parameters(old.model), num_parameters(manifest.model)]
    assert (manifest.group_steps, manifest.step) == (old.group_steps, 0)
    for name in parameter_shapes(manifest.model):
        state, is_old = read_parameter(tmp_path / "grown", manifest, name), name in parameter_shapes(old.model)
        assert bool(state.exp_avg.any()) is bool(state.exp_avg_sq.any()) is is_old
        assert is_old or generation_of(name) == 1


def test_the_history_depends_on_the_place_of_new_layers_only_where_there_are_some(final, tmp_path):
    def entries(**arguments: Any) -> list[dict[str, Any]]:
        folders = [(tmp_path / f"{policy.depth}-{arguments}", policy) for policy in (GrowthPolicy(), INTERLEAVE)]
        lineages = [expand(final, folder, policy=policy, **arguments).lineage for folder, policy in folders]
        return [lineage.history[-1].determined_by for lineage in lineages]

    tokens, layers = entries(attention_tokens=3), entries(new_layers=1)
    assert tokens[0] == tokens[1]
    assert layers[0]["model"] == layers[1]["model"]
    assert layers[0] != layers[1]


def test_the_history_of_a_growth_is_the_same_whatever_biases_training_has_found(tmp_path):
    def entry(bias: float) -> dict[str, Any]:
        config = small_config(attention_tokens=4, routing=Routing(groups=2, read=1))
        model: Any = build_model(config, seed=0)
        model.blocks["0"].ffn.routers["0"].bias_G.fill_(bias)
        write_checkpoint(tmp_path / f"{bias}", model.balanced(config))
        grown = expand(tmp_path / f"{bias}", tmp_path / f"{bias}+4", attention_tokens=4)
        assert grown.model.blocks[0].ffn.generations[0].biases == (bias, bias)
        return grown.lineage.history[-1].determined_by

    assert entry(0.5) == entry(0.25)


def test_what_becomes_of_a_decoders_moments_is_part_of_its_history(tmp_path):
    write_checkpoint(tmp_path / "base", DECODER)
    kept, reset = (
        expand(tmp_path / "base", tmp_path / moments, ffn_tokens=2, policy=GrowthPolicy(moments=moments))
        for moments in ("keep", "reset")
    )
    assert kept.group_steps != reset.group_steps == {}
    assert kept.lineage.history[-1].hash != reset.lineage.history[-1].hash


def test_bad_growth_is_refused_and_leaves_nothing(final, tmp_path):
    cases: list[tuple[Path, dict[str, Any], type[Exception], str]] = [
        (final, {"attention_tokens": -3, "ffn_tokens": 1}, UserError, "growth adds -3"),
        (final, {"output": final}, CheckpointError, "already exists"),
        (tmp_path / "nowhere", {}, CheckpointError, "does not exist"),
        (tmp_path / "decoder", {}, UserError, "the layers of a decoder .* have no attention tokens"),
        (tmp_path / "short", {}, CheckpointError, r"embedding\.weight\.safetensors has \d+ bytes"),
    ]
    write_checkpoint(tmp_path / "decoder", DECODER)
    write_checkpoint(tmp_path / "short")
    os.truncate(tmp_path / "short" / parameter_file("embedding.weight"), 100)
    for source, changes, error, message in cases:
        with pytest.raises(error, match=message):
            expand(source, **({"output": tmp_path / "grown", "attention_tokens": 4} | changes))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["decoder", "final", "short"]
