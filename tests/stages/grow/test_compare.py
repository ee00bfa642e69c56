"""Comparing checkpoints as functions: results match models run by hand, under every growth policy."""

import asyncio
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.decoder_config import decoder_config
from model.depth import COPYING
from model.errors import UserError
from model.policy import GrowthPolicy
from model.shapes import ModelConfig
from model.tokenformer_config import tokenformer_config
from stages.checkpoint.lineage import Lineage
from stages.checkpoint.manifest import CheckpointError, manifest_hash, read_manifest
from stages.checkpoint.parameters import load_model, read_parameter, write_parameter
from stages.checkpoint.sealed import seal
from stages.corpus.prepare import prepare
from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.dataset import read_dataset_manifest
from stages.data.errors import DataError
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.spec import DataSpec
from stages.grow import compare as compare_module
from stages.grow.compare import compare
from stages.grow.expand import expand, shrink
from tests.stages.checkpoints import write_checkpoint

CONFIG = tokenformer_config(
    num_layers=2, attention_tokens=5, ffn_tokens=10, vocab_size=300, hidden_size=16, num_heads=2
)
DECODER = decoder_config(vocab_size=300, hidden_size=16, num_heads=2, num_layers=2, ffn_tokens=32)
COPY, OFFICIAL = GrowthPolicy(init="copy", tau="recompute"), GrowthPolicy.of("official")
ZERO_VALUE = GrowthPolicy(init="zero-value", tau="per-generation")
NOISY = COPY.model_copy(update={"copy_noise": 1e-3, "allow_jump": True})
STACK, MIDDLE = (GrowthPolicy(depth=depth, allow_jump=True) for depth in COPYING)
EVERY_WAY = {"ffn_tokens": 5, "heads": 1, "new_layers": 1}
TEXT: dict[str, Any] = {"num_sequences": 3, "sequence_length": 24}


def prepare_text(datasets: Path) -> Path:
    """A dataset of a little real text, under `datasets`."""
    source = str(Path(asyncio.__file__).parent)
    return prepare(DataSpec(source=source, include="*.py", vocab_size=300, validation_fraction=0.2), datasets)


def write_trained(directory: Path, dataset: Path, config: ModelConfig = CONFIG) -> Path:
    """A checkpoint whose manifest names `dataset`."""
    write_checkpoint(directory, config)
    described = read_dataset_manifest(dataset)
    rewrite(directory, dataset_fingerprint=described.fingerprint, tokenizer_sha256=described.tokenizer_sha256)
    return directory


def rewrite(directory: Path, **changes: object) -> None:
    """Changes a manifest in place."""
    manifest = read_manifest(directory).model_copy(update=changes)
    (directory / "manifest.json").write_text(seal(manifest).model_dump_json())


def alter(directory: Path, name: str, change: Callable[[Tensor], Tensor]) -> None:
    """Changes a parameter and its hash in the manifest; first replaces a hard link to the parent's file by a copy."""
    manifest = read_manifest(directory)
    value = read_parameter(directory, manifest, name, moments=False).fp32
    file, entry = write_parameter(directory, name, change(value.clone()))
    rewrite(directory, files=manifest.files | {file: entry})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_text(tmp_path_factory.mktemp("datasets"))


@pytest.fixture
def old(tmp_path: Path, dataset: Path) -> Path:
    return write_trained(tmp_path / "old", dataset)


def ids_of(dataset: Path) -> tuple[Tensor, Tensor]:
    tokens_BT = torch.from_numpy(EvaluationWindows(dataset, "validation", 24, 3).batch(0, 3))
    return tokens_BT[:, :-1], tokens_BT[:, 1:]


def test_the_loss_on_a_mixture_is_the_weighted_mean_of_its_sources(old: Path, dataset: Path, tmp_path: Path):
    mixture = write_mixture([Ingredient("a", dataset, 1.0), Ingredient("b", dataset, 4.0)], tmp_path)
    losses = {n: compare(old, old, dataset, num_sequences=n, sequence_length=24).old.loss for n in (1, 3)}
    found = compare(old, old, mixture, num_sequences=4, sequence_length=24)
    assert found.old.loss == pytest.approx(0.2 * losses[1] + 0.8 * losses[3])


@pytest.mark.parametrize(
    ("config", "policy", "growth", "dtype", "low", "high"),
    [
        (CONFIG, GrowthPolicy(), {"attention_tokens": 7}, "float64", 0, 1e-12),
        (CONFIG, ZERO_VALUE, {"attention_tokens": 5}, "float64", 0, 0),
        (CONFIG, COPY, {"attention_tokens": 10}, "float64", 1e-9, 2e-7),  # quotients rounded to float32
        (CONFIG, COPY, {"attention_tokens": 10}, "float32", 1e-8, 1e-4),
        (CONFIG, OFFICIAL, {"attention_tokens": 5}, "float64", 0.1, 100),
        (CONFIG, NOISY, {"attention_tokens": 10}, "float64", 1e-4, 1),
        (CONFIG, GrowthPolicy(depth="interleave"), {"new_layers": 2}, "float64", 0, 0),
        (CONFIG, STACK, {"new_layers": 2}, "float64", 1e-3, 100),
        (DECODER, GrowthPolicy(), EVERY_WAY | {"widen": 3}, "float64", 0, 1e-6),  # as copies
        (DECODER, GrowthPolicy(depth="interleave"), EVERY_WAY, "float64", 0, 1e-12),
        (DECODER, STACK, {"new_layers": 2}, "float64", 1e-3, 100),
        (DECODER, MIDDLE, {"new_layers": 1}, "float64", 1e-3, 100),
    ],
)
def test_growth_is_reported_as_its_policy_promises(tmp_path, dataset, config, policy, growth, dtype, low, high):
    old = write_trained(tmp_path / "old", dataset, config)
    manifest = expand(old, tmp_path / "new", **growth, policy=policy)
    assert bool(manifest.group_steps) is (policy.moments == "keep" and "widen" not in growth)
    found = compare(old, tmp_path / "new", dataset, dtype=dtype, **TEXT)
    assert low <= found.relative_difference <= high
    assert found.tolerance == (1e-6 if dtype == "float64" else 1e-4)
    assert found.lineage.growth.preserves is (found.verdict == "preserved") is (high < 1)
    assert not found.breaks_promise
    assert found.verdict == "changed" or abs(found.jump) < found.tolerance
    alter(tmp_path / "new", "final_norm.weight", lambda value: value * 2)
    assert compare(old, tmp_path / "new", dataset, dtype=dtype, **TEXT).breaks_promise is (high < 1)


def test_logits_and_losses_match_models_run_by_hand_one_at_a_time(old, tmp_path, dataset, monkeypatch):
    new, ids_BT, targets_BT = tmp_path / "new", *ids_of(dataset)
    expand(old, new, attention_tokens=5, policy=OFFICIAL)
    loaded: list[weakref.ref] = []

    def watched(*arguments, **keywords):
        assert all(model() is None for model in loaded), "two models are in memory"
        model = load_model(*arguments, **keywords)
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr(compare_module, "load_model", watched)
    found = compare(old, new, dataset, **TEXT)
    assert len(loaded) == 2
    logits = {}
    for path, measured in ((old, found.old), (new, found.new)):
        model = load_model(path, dtype=torch.float64)
        logits[path] = model(ids_BT).detach()
        loss = F.cross_entropy(logits[path].flatten(0, 1), targets_BT.flatten())
        assert measured.loss == pytest.approx(loss.item(), rel=1e-12)
        assert measured.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    difference = (logits[new] - logits[old]).abs()
    assert found.largest_difference == pytest.approx(difference.max().item(), rel=1e-9)
    assert found.mean_difference == pytest.approx(difference.mean().item(), rel=1e-9)
    assert found.relative_difference == pytest.approx((difference.max() / logits[old].abs().max()).item(), rel=1e-9)
    assert found.jump == found.new.loss - found.old.loss != 0


def test_a_lineage_is_known_of_parent_and_child_only_and_an_altered_child_breaks_its_promise(old, tmp_path, dataset):
    new, shrunk, num_files = tmp_path / "new", tmp_path / "shrunk", len(read_manifest(old).files)

    def facts(first: Path, second: Path) -> tuple[Any, ...]:
        found = compare(first, second, dataset, **TEXT)
        assert (found.lineage.growth is not None) is (found.lineage.operation == "expand")
        return found.lineage.operation, found.lineage.num_shared_files, found.verdict, found.breaks_promise

    expand(old, new, attention_tokens=5)
    assert facts(old, new) == ("expand", num_files, "preserved", False)
    shrink(new, shrunk)
    assert facts(new, shrunk) == ("shrink", num_files, "preserved", False)
    assert compare(new, shrunk, dataset, **TEXT).lineage.num_old_files > num_files
    alter(shrunk, "final_norm.bias", lambda value: value + 1)
    assert facts(new, shrunk) == ("shrink", num_files - 1, "changed", False), "shrinking promises nothing"
    assert facts(old, shrunk) == (None, num_files - 1, "changed", False), "not a child but a grandchild"
    alter(new, "blocks.1.ffn.value_tokens.0", lambda value: value * 1.001)
    assert facts(old, new) == ("expand", num_files - 1, "changed", True)
    rewrite(new, lineage=Lineage(operation="train", parent=manifest_hash(old)))
    assert facts(old, new)[0] == "train"
    alter(new, "final_norm.bias", lambda value: value * float("nan"))
    with pytest.raises(RuntimeError, match="new gives logits that are not finite"):
        compare(old, new, dataset, **TEXT)


def test_checkpoints_that_cannot_be_compared_are_refused(old, dataset, tmp_path):
    other = write_trained(tmp_path / "decoder", dataset, DECODER)
    found = compare(old, other, dataset, **TEXT)  # different families can be
    assert (found.verdict, found.lineage.operation) == ("changed", None)
    small = write_trained(tmp_path / "small", dataset, CONFIG.model_copy(update={"vocab_size": 299}))
    rewrite(other, tokenizer_sha256="f" * 64)
    engine = write_trained(tmp_path / "engine", dataset)
    rewrite(engine, kind="engine")
    for first, second, text, error, message in (
        (old, small, dataset, UserError, r"vocabulary of 300 tokens, but .* has 299"),
        (small, small, dataset, UserError, "300 tokens, but .*small has only 299"),
        (old, old, tmp_path, DataError, "is not a dataset"),
        (old, engine, dataset, CheckpointError, "engine is an engine checkpoint"),
        (old, other, dataset, UserError, "made with a different tokenizer"),
    ):
        with pytest.raises(error, match=message):
            compare(first, second, text)
