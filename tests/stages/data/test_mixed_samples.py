"""stages/data/mixed_samples.py: samples from several datasets, on hand-made tokens."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.data.errors import DataError
from stages.data.order import BLOCK_SAMPLES
from stages.data.samples import TrainingSamples
from tests.stages.data.mixtures import mixed_samples, spans_of
from tests.stages.data.test_dataset import write_dataset

STAGES = spans_of(
    (0, {"books": 0.6, "code": 0.3, "wiki": 0.1}),
    (100, {"books": 1, "wiki": 2}),
    (300, {"books": 0.25, "code": 0.75}),
)
LENGTH = 16


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("datasets")
    return {
        "books": write_dataset(folder / "books", [3000, 1001], [100], token_bytes=2),
        "code": write_dataset(folder / "code", [1700], [100]),
        "wiki": write_dataset(folder / "wiki", [500], [100]),
    }


@pytest.fixture(scope="module")
def samples(datasets: dict[str, Path]) -> TrainingSamples:
    return mixed_samples(datasets, STAGES, LENGTH, seed=3)


def test_each_source_is_read_in_the_order_that_it_has_alone(
    datasets: dict[str, Path], samples: TrainingSamples
) -> None:
    places, _ = samples.places(0, 1000).T
    batch = samples.batch(0, 1000)
    for i, directory in enumerate(datasets.values()):
        alone = TrainingSamples(directory, LENGTH, seed=3).batch(0, int(np.sum(places == i)))
        assert len(alone) > TrainingSamples(directory, LENGTH, seed=3).num_windows, "more than an epoch"
        assert np.array_equal(batch[places == i], alone)


def test_a_mixture_of_one_source_is_that_source(datasets: dict[str, Path]) -> None:
    mixed = mixed_samples({"code": datasets["code"]}, spans_of((0, {"code": 0.7})), LENGTH, seed=9)
    assert np.array_equal(mixed.batch(10**11, 20), TrainingSamples(datasets["code"], LENGTH, seed=9).batch(10**11, 20))


@settings(max_examples=20)
@given(
    ranks=st.sampled_from([1, 2, 3, 4, 6]),
    micro_batches=st.sampled_from([1, 2, 4]),
    first_step=st.sampled_from([0, 3, 11, BLOCK_SAMPLES // 48 - 1, 10**9]),
)
def test_any_world_size_micro_batch_accumulation_and_resumption_gives_the_same_global_batches(
    datasets: dict[str, Path], samples: TrainingSamples, ranks: int, micro_batches: int, first_step: int
) -> None:
    batch_size, size = 48, 48 // ranks // micro_batches
    readers = [mixed_samples(datasets, STAGES, LENGTH, seed=3) for _ in range(ranks)]
    for step in range(first_step, first_step + 3):
        first = step * batch_size
        rows = np.empty((batch_size, LENGTH + 1), np.int64)
        for rank, reader in enumerate(readers):
            for number in range(micro_batches):
                place = (number * ranks + rank) * size
                rows[place : place + size] = reader.batch(first + place, size)
        assert np.array_equal(rows, samples.batch(first, batch_size))


def test_mixed_samples_can_be_indexed_and_pickled(samples: TrainingSamples) -> None:
    again = pickle.loads(pickle.dumps(samples))
    assert np.array_equal(np.stack([again[i] for i in range(90, 310)]), samples.batch(90, 220))


def test_tokens_and_epochs_by_source_count_what_was_read(samples: TrainingSamples) -> None:
    sources, _ = samples.places(50, 400).T
    expected = {"books": 0, "code": 1, "wiki": 2}
    assert samples.tokens_by_source(50, 400) == {n: LENGTH * int(np.sum(sources == i)) for n, i in expected.items()}
    epochs = samples.epochs_by_source(100)
    assert epochs["code"] == pytest.approx(30 / (1700 // LENGTH), abs=2 / (1700 // LENGTH))


def test_a_mixture_is_read_in_order_up_to_its_last_sample(datasets: dict[str, Path]) -> None:
    samples = mixed_samples(datasets, STAGES, LENGTH, seed=3, epochs_at_most={"wiki": 1})
    assert samples.mixture
    end = samples.mixture.end
    assert end is not None
    assert 100 < end < BLOCK_SAMPLES, "the last samples are not a whole block"
    in_order = np.concatenate([samples.batch(index, 1) for index in range(end)])
    assert (in_order == samples.batch(0, end)).all()
    for _ in range(2):
        with pytest.raises(
            DataError,
            match=rf"last for {end * LENGTH:,} of {(end + 1) * LENGTH:,} training tokens: .* may be read 1 time \(",
        ):
            samples.batch(end, 1)
