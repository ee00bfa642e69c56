"""Samples from several datasets, whole and in pieces of longer windows, on hand-made tokens."""

import pickle
from collections import Counter

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
NUM_TOKENS = {"books": 4001, "code": 1700, "wiki": 500}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("datasets")
    return {
        "books": write_dataset(folder / "books", [3000, 1001], [100], token_bytes=2),
        "code": write_dataset(folder / "code", [1700], [100]),
        "wiki": write_dataset(folder / "wiki", [500], [100]),
    }


@pytest.fixture(scope="module")
def samples(datasets):
    return mixed_samples(datasets, STAGES, LENGTH, seed=3)


def test_each_source_is_read_in_the_order_that_it_has_alone(datasets, samples):
    sources, batch = samples.places(0, 1000)[:, 0], samples.batch(0, 1000)
    for i, directory in enumerate(datasets.values()):
        alone = TrainingSamples(directory, LENGTH, seed=3)
        assert np.sum(sources == i) > alone.num_windows, "more than an epoch"
        assert np.array_equal(batch[sources == i], alone.batch(0, int(np.sum(sources == i))))
    one = mixed_samples({"code": datasets["code"]}, spans_of((0, {"code": 0.7})), LENGTH, seed=9)
    assert np.array_equal(one.batch(10**11, 20), TrainingSamples(datasets["code"], LENGTH, seed=9).batch(10**11, 20))


@settings(max_examples=20)
@given(
    st.sampled_from([1, 2, 3, 4, 6]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0, 3, 11, BLOCK_SAMPLES // 48 - 1, 10**9]),
)
def test_any_world_size_micro_batch_accumulation_and_resumption_gives_the_same_global_batches(
    datasets, samples, ranks, micro_batches, first_step
):
    batch_size, size = 48, 48 // ranks // micro_batches
    readers = [mixed_samples(datasets, STAGES, LENGTH, seed=3) for _ in range(ranks)]
    for first in range(first_step * batch_size, (first_step + 3) * batch_size, batch_size):
        rows = np.empty((batch_size, LENGTH + 1), np.int64)
        for rank, reader in enumerate(readers):
            for place in range(rank * size, batch_size, ranks * size):
                rows[place : place + size] = reader.batch(first + place, size)
        assert np.array_equal(rows, samples.batch(first, batch_size))


def test_mixed_samples_can_be_indexed_and_pickled(samples):
    again = pickle.loads(pickle.dumps(samples))
    assert np.array_equal(np.stack([again[i] for i in range(90, 310)]), samples.batch(90, 220))


def test_a_mixture_is_read_in_order_up_to_its_last_sample(datasets):
    samples = mixed_samples(datasets, STAGES, LENGTH, seed=3, most={"wiki": 1})
    end = samples.mixture.end or 0
    assert 100 < end < BLOCK_SAMPLES, "the last samples are not a whole block"
    in_order = np.concatenate([samples.batch(index, 1) for index in range(end)])
    assert (in_order == samples.batch(0, end)).all()
    message = rf"last for {end * LENGTH:,} of {(end + 1) * LENGTH:,} training tokens: .* may be read 1 time \("
    for _ in range(2):
        with pytest.raises(DataError, match=message):
            samples.batch(end, 1)


@settings(max_examples=30)
@given(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(0, 2**63), st.integers(0, 10**9))
def test_the_pieces_of_a_window_in_order_are_the_window(datasets, context, seed, first):
    windows = TrainingSamples(datasets["books"], 12, seed).batch(first, 3)
    samples = TrainingSamples(datasets["books"], context, seed, window_length=12)
    pieces = samples.batch(first * 12 // context, 3 * 12 // context)
    assert np.array_equal(pieces[:, :-1].ravel(), windows[:, :-1].ravel())
    assert np.array_equal(pieces[:, 1:].ravel(), windows[:, 1:].ravel()), "each target is the next token"


@settings(max_examples=30)
@given(st.sampled_from([2, 3, 4, 8, 16, 48]), st.integers(0, 3000), st.integers(0, 400))
def test_a_mixture_takes_whole_windows_from_its_sources_and_counts_their_tokens(datasets, context, first, count):
    stages = spans_of((0, {"books": 3, "code": 1}), (20, {"code": 1}), (25, {"books": 1, "wiki": 1}))
    pieces, whole = (mixed_samples(datasets, stages, length, 7, window_length=48) for length in (context, 48))
    per_window, sizes = 48 // context, list(NUM_TOKENS.values())
    found, windows = pieces.places(first, count), whole.places(0, (first + count) // per_window + 1).tolist()
    expected = []
    for window, piece in (divmod(index, per_window) for index in range(first, first + count)):
        source, start = windows[window]
        expected.append([source, (start + piece * context) % sizes[source]])
    assert found.tolist() == expected
    assert pieces.batch(first, min(count, 20))[:, 0].tolist() == found[:20, 1].tolist()
    read = Counter(found[:, 0].tolist())
    assert pieces.tokens_by_source(first, count) == {name: read[i] * context for i, name in enumerate(NUM_TOKENS)}
    of_windows = Counter(source for source, _ in whole.places(0, 60).tolist())
    epochs = {name: of_windows[i] / (size // 48) for i, (name, size) in enumerate(NUM_TOKENS.items())}
    assert pieces.epochs_by_source(60 * per_window) == epochs


def test_a_source_that_is_used_up_ends_the_pieces_with_its_last_window(datasets):
    stages, limits = spans_of((0, {"code": 1.0})), {"code": 1.0}
    pieces = mixed_samples({"code": datasets["code"]}, stages, 12, 7, limits, window_length=48)
    assert len(set(pieces.batch(0, 1700 // 48 * 4)[:, :-1].ravel().tolist())) == 1700 // 48 * 48
    with pytest.raises(DataError, match="the sources last for 1,680 of 1,728 training tokens"):
        pieces.batch(1700 // 48 * 4, 1)
