"""stages/train/text_data.py: the validation loss of a mixture on any number of ranks, and the tokens of its sources.

The loss is by source and weighted; the tokens are those that a stage has trained on, with skipped data left out.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.samples import TrainingSamples
from stages.metrics import Record
from stages.spec import MixtureSpan
from stages.train import text_data as trainer
from stages.train.skipped_data import position, trained_ranges
from stages.train.text_data import source_use
from tests.stages.checkpoints import small_config
from tests.stages.data.test_dataset import write_dataset
from tests.stages.specs import small_spec

WEIGHTS = {"books": 6.0, "code": 3.0, "wiki": 1.0}
USE = {name: {"trained_tokens": 7, "epochs": 0.5} for name in WEIGHTS}
SPANS = (MixtureSpan(first_window=0, weights=WEIGHTS), MixtureSpan(first_window=35, weights={"code": 1.0}))
LEFT_OUT = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), max_size=3).map(sorted).map(tuple)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("datasets")
    lengths = {"books": 700, "code": 330, "wiki": 50}
    sources = [
        Ingredient(name, write_dataset(folder / name, [200], [lengths[name]]), weight)
        for name, weight in WEIGHTS.items()
    ]
    return write_mixture(sources, folder)


@pytest.fixture(scope="module")
def samples(mixture: Path) -> TrainingSamples:
    return TrainingSamples(mixture, 10, 0, SPANS)


def mean_token(input_ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """An invented loss."""
    return targets_BT.double().mean() / 100


def evaluate(windows: EvaluationWindows, ranks: int, batch_size: int, patch: pytest.MonkeyPatch) -> Record:
    """The result of all ranks together, which run one after another."""
    parts: list[Tensor] = []
    found: Any = None
    for rank in range(ranks):

        def all_reduce(totals: Tensor) -> None:
            parts.append(totals.clone())
            totals.copy_(torch.stack(parts).sum(0).clamp(min=1e-9))

        patch.setattr(trainer.dist, "get_rank", lambda rank=rank: rank)
        patch.setattr(trainer.dist, "get_world_size", lambda: ranks)
        patch.setattr(trainer.dist, "all_reduce", all_reduce)
        found = trainer.evaluate(mean_token, windows, batch_size, torch.device("cpu"), USE)
    return found


@pytest.mark.parametrize(("ranks", "batch_size", "max_sequences"), [(1, 4, None), (5, 2, 20), (64, 1, 20)])
def test_the_loss_of_a_mixture_is_the_weighted_mean_of_its_sources_on_any_number_of_ranks(
    mixture: Path, ranks: int, batch_size: int, max_sequences: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = EvaluationWindows(mixture, "validation", 16, max_sequences)
    found = evaluate(windows, ranks, batch_size, monkeypatch)
    assert list(found["by_source"]) == list(WEIGHTS)
    for name, source in zip(WEIGHTS, windows.sources, strict=True):
        own = found["by_source"][name]
        rows = [windows[place][1:] for place in range(len(windows)) if windows.source(place).name == name]
        tokens = torch.tensor([row.tolist() for row in rows], dtype=torch.float64)
        assert own["loss"] == pytest.approx(tokens.mean().item() / 100, rel=1e-12)
        assert own["num_tokens"] == tokens.numel() == source.num_windows * 16
        assert own["bits_per_byte"] == pytest.approx(own["loss"] / math.log(2) / source.bytes_per_token)
        assert own.items() >= USE[name].items()
    for figure in ("loss", "bits_per_byte"):
        weighted = sum(WEIGHTS[name] / 10 * each[figure] for name, each in found["by_source"].items())
        assert found[figure] == pytest.approx(weighted, rel=1e-12)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["num_tokens"] == len(windows) * 16


@given(LEFT_OUT, st.integers(0, 15), st.integers(0, 9))
def test_the_tokens_are_those_of_the_samples_that_updates_read(samples, left_out, step, samples_seen):
    spec = small_spec(small_config(), left_out=left_out, samples_seen=samples_seen, mixture=SPANS)
    firsts = [samples_seen + position(number, left_out) * spec.batch_size for number in range(step)]
    sources = [source for first in firsts for source in samples.places(first, spec.batch_size)[:, 0].tolist()]
    found = source_use(samples, spec, step)
    assert {name: each["trained_tokens"] for name, each in found.items()} == {
        name: 10 * sources.count(number) for number, name in enumerate(WEIGHTS)
    }
    assert sum(each["trained_tokens"] for each in found.values()) == step * spec.batch_size * spec.sequence_length


@given(LEFT_OUT, st.integers(0, 15))
def test_the_trained_ranges_are_the_positions_of_the_updates(left_out, step):
    ranges = [np.arange(first, first + count) for first, count in trained_ranges(step, left_out)]
    assert np.concatenate([[], *ranges]).tolist() == [position(number, left_out) for number in range(step)]


def test_epochs_count_from_the_ladders_first_sample_and_with_skipped_data(samples):
    spec = small_spec(small_config(), samples_seen=8, left_out=((1, 2),), mixture=SPANS)
    assert source_use(samples, spec, 3)["code"]["epochs"] == samples.epochs_by_source(8 + (3 + 2) * 4)["code"]
