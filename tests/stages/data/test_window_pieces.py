"""Windows read in pieces, on hand-made tokens that are their own places."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.data.samples import TrainingSamples
from tests.stages.data.mixtures import mixed_samples, spans_of
from tests.stages.data.test_dataset import write_dataset

WINDOW = 12
DIVISORS = st.sampled_from([1, 2, 3, 4, 6, 12])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset") / "one", [700, 300], [100])


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    return {
        "books": write_dataset(folder / "books", [3000], [100], token_bytes=2),
        "code": write_dataset(folder / "code", [1700], [100]),
    }


@settings(max_examples=30)
@given(DIVISORS, st.integers(0, 2**63), st.integers(0, 10**9))
def test_the_pieces_of_a_window_in_order_are_the_window(dataset: Path, context: int, seed: int, first: int) -> None:
    windows = TrainingSamples(dataset, WINDOW, seed).batch(first, 3)
    pieces = TrainingSamples(dataset, context, seed, window_length=WINDOW).batch(
        first * WINDOW // context, 3 * WINDOW // context
    )
    assert np.array_equal(pieces[:, :-1].ravel(), windows[:, :-1].ravel())
    assert np.array_equal(pieces[:, 1:].ravel(), windows[:, 1:].ravel()), "each target is the next token"


@settings(max_examples=30)
@given(st.sampled_from([2, 3, 4, 8, 16, 48]), st.integers(0, 3000), st.integers(0, 400))
def test_a_mixture_takes_whole_windows_from_its_sources_and_counts_their_tokens(
    sources: dict[str, Path], context: int, first: int, count: int
) -> None:
    stages = spans_of((0, {"books": 3, "code": 1}), (20, {"code": 1}), (25, {"books": 1}))
    pieces, whole = (mixed_samples(sources, stages, length, 7, window_length=48) for length in (context, 48))
    per_window = 48 // context
    found, expected = pieces.places(first, count), whole.places(0, (first + count) // per_window + 1)
    for index, (source, start) in enumerate(found.tolist(), first):
        window, piece = divmod(index, per_window)
        num_tokens = (3000, 1700)[source]
        assert [source, start] == [expected[window, 0], (expected[window, 1] + piece * context) % num_tokens]
    read = Counter(found[:, 0].tolist())
    assert pieces.tokens_by_source(first, count) == {"books": read[0] * context, "code": read[1] * context}
    assert pieces.epochs_by_source(20 * per_window) == whole.epochs_by_source(20)
    assert np.array_equal(pieces.batch(first, min(count, 20))[:, 0] - found[: min(count, 20), 1], [0] * min(count, 20))


def test_a_source_that_is_used_up_ends_the_pieces_with_its_last_window(sources: dict[str, Path]) -> None:
    stages, limits = spans_of((0, {"code": 1.0})), {"code": 1.0}
    pieces = mixed_samples({"code": sources["code"]}, stages, 12, 7, limits, window_length=48)
    assert len(set(pieces.batch(0, 1700 // 48 * 4)[:, :-1].ravel().tolist())) == 1700 // 48 * 48
    with pytest.raises(ValueError, match="the sources last for 1,680 of 1,728 training tokens"):
        pieces.batch(1700 // 48 * 4, 1)
