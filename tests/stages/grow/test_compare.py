"""Comparing checkpoints as functions: results match models run by hand, under every growth policy.

Shapes: B batch, T sequence, D model width, N parameter tokens.
"""

import asyncio
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.config import TokenformerConfig, TransformerConfig, tokenformer_config
from model.errors import UserError
from model.policy import GrowthPolicy
from stages.checkpoint.lineage import Lineage
from stages.checkpoint.manifest import CheckpointError, manifest_hash, read_manifest, sealed_manifest
from stages.checkpoint.parameters import load_model, read_parameter, write_parameter
from stages.corpus.prepare import prepare
from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.dataset import read_dataset_manifest
from stages.data.errors import DataError
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.spec import DataSpec
from stages.grow import compare as compare_module
from stages.grow.compare import compare
from stages.grow.comparison import Comparison
from stages.grow.expand import expand, expand_transformer, shrink
from tests.stages.checkpoints import write_checkpoint

CONFIG = tokenformer_config(
    num_layers=2, attention_tokens=5, ffn_tokens=10, vocab_size=300, hidden_size=16, num_heads=2
)
TRANSFORMER = TransformerConfig(vocab_size=300, hidden_size=16, num_heads=2, num_layers=2, ffn_size=32)
DEFAULT, COPY, OFFICIAL = GrowthPolicy(), GrowthPolicy(init="copy", tau="recompute"), GrowthPolicy.of("official")
ZERO_KEY = GrowthPolicy(init="zero-key", tau="frozen")
ZERO_VALUE = GrowthPolicy(init="zero-value", tau="per-generation")
NOISY = COPY.model_copy(update={"copy_noise": 1e-3, "allow_jump": True})
TEXT: dict[str, Any] = {"num_sequences": 3, "sequence_length": 24}


def prepare_text(datasets: Path) -> Path:
    """A dataset of a little real text, under `datasets`."""
    source = str(Path(asyncio.__file__).parent)
    return prepare(DataSpec(source=source, include="*.py", vocab_size=300, validation_fraction=0.2), datasets)


def write_trained(directory: Path, dataset: Path, config: TokenformerConfig | TransformerConfig = CONFIG) -> Path:
    """A checkpoint whose manifest names `dataset`."""
    write_checkpoint(directory, config)
    described = read_dataset_manifest(dataset)
    rewrite(directory, dataset_fingerprint=described.fingerprint, tokenizer_sha256=described.tokenizer_sha256)
    return directory


def rewrite(directory: Path, **changes: object) -> None:
    """Changes a manifest in place."""
    manifest = read_manifest(directory).model_copy(update=changes)
    (directory / "manifest.json").write_text(sealed_manifest(manifest).model_dump_json())


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


@pytest.fixture
def grown(old: Path, tmp_path: Path, dataset: Path) -> Callable[..., tuple[Path, Comparison]]:
    def grow(policy: GrowthPolicy, attention_tokens: int = 5) -> tuple[Path, Comparison]:
        expand(old, tmp_path / "new", attention_tokens=attention_tokens, policy=policy)
        return tmp_path / "new", compare(old, tmp_path / "new", dataset, **TEXT)

    return grow


def ids_of(dataset: Path) -> tuple[Tensor, Tensor]:
    tokens_BT = torch.from_numpy(EvaluationWindows(dataset, "validation", 24, 3).batch(0, 3))
    return tokens_BT[:, :-1], tokens_BT[:, 1:]


def test_the_loss_on_a_mixture_is_the_weighted_mean_of_its_sources(old: Path, dataset: Path, tmp_path: Path):
    mixture = write_mixture([Ingredient("a", dataset, 1.0), Ingredient("b", dataset, 4.0)], tmp_path)
    losses = {n: compare(old, old, dataset, num_sequences=n, sequence_length=24).old.loss for n in (1, 3)}
    found = compare(old, old, mixture, num_sequences=4, sequence_length=24)
    assert found.old.loss == pytest.approx(0.2 * losses[1] + 0.8 * losses[3])


@pytest.mark.parametrize(
    ("policy", "tokens", "dtype", "low", "high"),
    [
        (DEFAULT, 7, "float64", 0, 1e-12),
        (ZERO_KEY, 7, "float64", 0, 1e-12),
        (ZERO_VALUE, 5, "float64", 0, 0),
        (COPY, 5, "float64", 0, 1e-12),
        (COPY, 10, "float64", 1e-9, 2e-7),  # quotients rounded to float32
        (COPY, 10, "float32", 1e-8, 1e-4),
        (OFFICIAL, 5, "float64", 0.1, 100),
        (NOISY, 10, "float64", 1e-4, 1),
        (NOISY, 10, "float32", 1e-4, 1),
    ],
)
def test_growth_is_reported_as_its_policy_promises(old, tmp_path, dataset, policy, tokens, dtype, low, high):
    expand(old, tmp_path / "new", attention_tokens=tokens, policy=policy)
    found = compare(old, tmp_path / "new", dataset, dtype=dtype, **TEXT)
    assert low <= found.relative_difference <= high
    assert found.tolerance == (1e-6 if dtype == "float64" else 1e-4)
    assert found.lineage.growth.preserves is (found.verdict == "preserved") is (high < 1)
    assert not found.breaks_promise
    assert found.verdict == "changed" or abs(found.jump) < found.tolerance


def test_logits_and_losses_match_models_run_by_hand(grown, old, dataset):
    new, found = grown(OFFICIAL)
    ids_BT, targets_BT = ids_of(dataset)
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
    assert (found.num_sequences, found.context) == (3, 24)


def test_scores_belong_to_their_generation_even_if_generations_share_a_norm(old, tmp_path):
    path = old
    for i, policy in enumerate((ZERO_VALUE, OFFICIAL, COPY.model_copy(update={"allow_jump": True}))):
        path, source = tmp_path / str(i), path
        expand(source, path, attention_tokens=(3, 4, 12)[i], policy=policy)
    alter(path, "blocks.0.query.value_tokens.1", torch.ones_like)
    model: Any = load_model(path, dtype=torch.float64)
    layer = model.blocks["0"].query
    x_BTD = torch.randn(2, 3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores = layer.scores(x_BTD)
    assert {number: score.shape[-1] for number, score in scores.items()} == {0: 5, 1: 3, 2: 4, 3: 12}
    shares = zip(layer.config.generations, layer.config.value_shares, strict=True)
    out = sum(scores[g.number] @ (layer.value_tokens[str(g.number)] * share) for g, share in shares)
    torch.testing.assert_close(out, layer(x_BTD), rtol=1e-12, atol=1e-14)


def test_a_child_whose_old_values_were_altered_breaks_its_policys_promise(grown, old, dataset):
    new, before = grown(DEFAULT)
    alter(new, "blocks.1.ffn.value_tokens.0", lambda value: value * 1.001)
    found = compare(old, new, dataset, **TEXT)
    assert found.breaks_promise
    assert found.verdict == "changed"
    assert found.lineage.num_shared_files == before.lineage.num_shared_files - 1 == found.lineage.num_old_files - 1


def test_lineage_is_known_only_between_parent_and_child(grown, old, tmp_path, dataset):
    new, found = grown(DEFAULT)
    assert (found.lineage.operation, found.lineage.growth.policy.tau) == ("expand", "ramp")
    assert found.lineage.num_shared_files == found.lineage.num_old_files == len(read_manifest(old).files)
    shrink(new, tmp_path / "shrunk")
    found = compare(new, tmp_path / "shrunk", dataset, **TEXT)
    assert (found.lineage.operation, found.lineage.growth, found.verdict) == ("shrink", None, "preserved")
    assert found.lineage.num_shared_files == len(read_manifest(old).files) < found.lineage.num_old_files
    alter(tmp_path / "shrunk", "final_norm.bias", lambda value: value + 1)
    found = compare(new, tmp_path / "shrunk", dataset, **TEXT)
    assert (found.verdict, found.breaks_promise) == ("changed", False), "shrinking promises nothing"
    found = compare(old, tmp_path / "shrunk", dataset, **TEXT)
    assert (found.lineage.operation, found.lineage.growth) == (None, None), "not a child but a grandchild"
    rewrite(new, lineage=Lineage(operation="train", parent=manifest_hash(old)))
    found = compare(old, new, dataset, **TEXT)
    assert (found.lineage.operation, found.lineage.growth) == ("train", None)


@pytest.mark.parametrize(
    ("depth", "sizes", "preserved"),
    [
        ("append", {"hidden_size": 48, "num_heads": 6, "ffn_size": 96}, True),
        ("interleave", {"num_layers": 3}, True),
        ("copy-stack", {"num_layers": 4}, False),
    ],
)
def test_transformers_are_compared(tmp_path, dataset, depth, sizes, preserved):
    old = write_trained(tmp_path / "old", dataset, TRANSFORMER)
    expand_transformer(old, tmp_path / "new", TRANSFORMER.model_copy(update=sizes), depth=depth)
    found = compare(old, tmp_path / "new", dataset, **TEXT)
    assert (found.verdict == "preserved", found.lineage.growth.preserves, found.breaks_promise) == (
        preserved,
        preserved,
        False,
    )
    alter(tmp_path / "new", "final_norm.weight", lambda value: value * 2)
    assert compare(old, tmp_path / "new", dataset, **TEXT).breaks_promise is preserved


def test_the_text_is_256_tokens_long_or_the_whole_split(old, dataset, tmp_path):
    found = compare(old, old, dataset, num_sequences=1)
    assert (found.num_sequences, found.context) == (1, 256)
    source = tmp_path / "texts"
    source.mkdir()
    for number in range(40):
        (source / f"{number}.txt").write_text(f"text {number}")
    spec = DataSpec(source=str(source), vocab_size=300, validation_fraction=0.2)
    short = prepare(spec, tmp_path / "datasets")
    rewrite(old, tokenizer_sha256=None)
    found = compare(old, old, short)
    num_tokens = read_dataset_manifest(short).splits["validation"].num_tokens
    assert (found.num_sequences, found.context) == (1, num_tokens - 1)
    with pytest.raises(DataError, match=f"one sample of {num_tokens} needs"):
        compare(old, old, short, sequence_length=num_tokens)


def test_checkpoints_that_cannot_be_compared_are_refused(old, dataset, tmp_path):
    other = write_trained(tmp_path / "transformer", dataset, TRANSFORMER)
    for first, second in ((old, other), (other, old)):  # different families can be
        found = compare(first, second, dataset, **TEXT)
        assert (found.verdict, found.lineage.operation) == ("changed", None)
    small = write_trained(tmp_path / "small", dataset, CONFIG.model_copy(update={"vocab_size": 299}))
    rewrite(other, tokenizer_sha256="f" * 64)
    engine = write_trained(tmp_path / "engine", dataset)
    rewrite(engine, kind="engine")
    for first, second, text, error, message in (
        (old, small, dataset, UserError, r"vocabulary of 300 tokens, but .* has 299"),
        (small, small, dataset, UserError, f"{dataset.name} has a vocabulary of 300 tokens, but .*small has only 299"),
        (old, old, tmp_path, DataError, "is not a dataset"),
        (old, engine, dataset, CheckpointError, "engine is an engine checkpoint"),
        (old, other, dataset, UserError, "made with a different tokenizer"),
    ):
        with pytest.raises(error, match=message):
            compare(first, second, text)


def test_logits_that_are_not_finite_are_an_error(grown, old, dataset):
    new, _ = grown(DEFAULT)
    alter(new, "final_norm.bias", lambda value: value * float("nan"))
    with pytest.raises(RuntimeError, match="new gives logits that are not finite"):
        compare(old, new, dataset, **TEXT)


def test_one_model_is_in_memory_at_a_time(grown, old, dataset, monkeypatch):
    new, _ = grown(DEFAULT)
    models: list[weakref.ref] = []

    def watched(*arguments, **keywords):
        assert all(model() is None for model in models)
        model = load_model(*arguments, **keywords)
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(compare_module, "load_model", watched)
    compare(old, new, dataset, **TEXT)
    assert len(models) == 2
