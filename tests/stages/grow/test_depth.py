"""Checkpoints that grow in depth: old files stay, shrink gives them back, and verify compares layer by layer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import parameter_shapes
from model.parameter_names import generation_of
from model.policy import GrowthPolicy
from stages.checkpoint.manifest import read_manifest, verify_checkpoint
from stages.checkpoint.parameters import load_model, read_parameter
from stages.grow.compare import compare
from stages.grow.expand import expand, shrink
from stages.inspect.measure import inspect_model
from tests.stages.checkpoints import small_config, write_checkpoint
from tests.stages.grow.test_compare import CONFIG, TEXT, prepare_text, write_trained
from tests.stages.grow.test_expand import IDS, assert_the_same_checkpoint, inodes

INTERLEAVE = GrowthPolicy(depth="interleave")
STACK = GrowthPolicy(depth="copy-stack", allow_jump=True)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_text(tmp_path_factory.mktemp("datasets"))


def logits(directory: Path) -> torch.Tensor:
    with torch.no_grad():
        return load_model(directory)(IDS)


def test_expand_adds_layers_beside_the_old_files_and_changes_no_bit_of_the_logits(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    write_checkpoint(old)
    manifest = expand(old, new, new_layers=2, policy=INTERLEAVE, seed=3)
    assert manifest.model.block_ids == (0, 2, 1, 3)
    assert torch.equal(logits(new), logits(old))
    assert inodes(old).items() <= inodes(new).items()
    assert verify_checkpoint(new) == manifest
    old_names = set(parameter_shapes(small_config()))
    for name in set(parameter_shapes(manifest.model)) - old_names:
        assert generation_of(name) == 1
        assert not read_parameter(new, manifest, name).exp_avg_sq.any()
    assert manifest.group_steps == read_manifest(old).group_steps
    growth = manifest.lineage.growth
    assert growth
    assert (growth.new_layers, growth.new_layer_positions, growth.preserves) == (2, [1, 3], True)
    copied = expand(old, tmp_path / "copies", new_layers=2, policy=STACK).lineage.growth
    assert copied
    assert not copied.preserves


def test_the_history_depends_on_the_place_of_new_layers_only_where_there_are_some(tmp_path):
    write_checkpoint(tmp_path / "old")

    def entry(name: str, **arguments: Any) -> dict[str, Any]:
        history = expand(tmp_path / "old", tmp_path / name, **arguments).lineage.history
        return history[-1].determined_by

    tokens = [entry(f"tokens-{p.depth}", attention_tokens=3, policy=p) for p in (GrowthPolicy(), INTERLEAVE)]
    assert tokens[0] == tokens[1]
    layers = [entry(f"layers-{p.depth}", new_layers=1, policy=p) for p in (GrowthPolicy(), INTERLEAVE)]
    assert layers[0]["model"] == layers[1]["model"]
    assert layers[0] != layers[1]


@settings(max_examples=6)
@given(
    st.integers(0, 2), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), min_size=1, max_size=3)
)
def test_shrink_undoes_growths_in_depth_and_tokens_bit_for_bit(tmp_path_factory, num_layers, growths):
    folder = tmp_path_factory.mktemp("depth")
    paths = [folder / "base"]
    write_checkpoint(paths[0], small_config(num_layers=num_layers))
    for tokens, new_layers, spread in growths:
        layers = read_manifest(paths[-1]).model.num_layers
        tokens, new_layers = (tokens if layers else 0), new_layers or int(not (tokens and layers))
        policy = INTERLEAVE if spread else GrowthPolicy()
        size = (3, 4) if new_layers else None
        paths.append(folder / str(len(paths)))
        expand(paths[-2], paths[-1], attention_tokens=tokens, new_layers=new_layers, layer_tokens=size, policy=policy)
        torch.testing.assert_close(logits(paths[-1]), logits(paths[-2]), rtol=0, atol=1e-5)
    for number in range(1, len(paths)):
        shrink(paths[-1], folder / f"back-{number}", drop_generations=number)
        assert_the_same_checkpoint(folder / f"back-{number}", paths[-1 - number])


@pytest.mark.parametrize(("policy", "verdict"), [(INTERLEAVE, "preserved"), (STACK, "changed")])
def test_verify_reports_whether_new_layers_keep_the_function(tmp_path, dataset, policy, verdict):
    old, new = write_trained(tmp_path / "old", dataset), tmp_path / "new"
    expand(old, new, new_layers=2, policy=policy)
    found = compare(old, new, dataset, **TEXT)
    assert (found.verdict, found.breaks_promise) == (verdict, False)
    assert found.lineage.growth.preserves is (found.largest_difference == 0) is (policy == INTERLEAVE)


def test_a_model_without_layers_is_verified_and_inspected(tmp_path, dataset):
    old, new = tmp_path / "old", tmp_path / "new"
    write_trained(old, dataset, CONFIG.model_copy(update={"blocks": (), "block_ids": ()}))
    expand(old, new, new_layers=3, layer_tokens=(4, 6))
    found = compare(old, new, dataset, **TEXT)
    assert found.largest_difference == 0
    assert compare(old, old, dataset, **TEXT).verdict == "preserved"
    for path, num_layers in ((old, 0), (new, 3)):
        facts = inspect_model(load_model(path), IDS, 2)
        assert [layer.block for layer in facts.layers] == [i for i in range(num_layers) for _ in range(5)]
        assert facts.num_dead == num_layers * (4 + 6)  # they add nothing to the residual stream yet
        assert facts.depth_ratio is None


def test_an_inspection_names_layers_by_their_position(tmp_path):
    write_checkpoint(tmp_path / "old")
    expand(tmp_path / "old", tmp_path / "new", new_layers=1, layer_tokens=(3, 4), policy=INTERLEAVE)
    expand(tmp_path / "new", tmp_path / "newer", new_layers=3, layer_tokens=(7, 8), policy=INTERLEAVE)
    model = load_model(tmp_path / "newer")
    assert model.config.block_ids == (0, 3, 1, 4, 2, 5)
    facts = inspect_model(model, IDS, 2)
    sizes = {(layer.block, layer.scores.num_tokens) for layer in facts.layers if layer.name == "query"}
    assert sizes == {(0, 5), (1, 7), (2, 5), (3, 7), (4, 3), (5, 7)}
