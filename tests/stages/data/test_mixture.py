"""Mixtures: whose turn it is at every sample, and the samples of several datasets, from the sample's index alone."""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.errors import DataError
from stages.data.mixture import ROUNDED_PARTS, Mixture, MixtureSource
from stages.data.order import BLOCK_SAMPLES
from stages.data.samples import TrainingSamples
from stages.spec import MixtureSpan
from tests.stages.data.test_dataset import write_dataset

NAMES = [f"source-{i}" for i in range(40)]
SHARE_BOUND = 1.68
"""A source's samples over any prefix of one piece differ by no more than this from its ideal share."""
weights_of_sources = st.lists(
    st.integers(1, 10**6) | st.floats(1e-4, 1e6, allow_nan=False).map(lambda x: round(x, 3) or 0.5),
    min_size=1,
    max_size=len(NAMES),
).map(lambda weights: dict(zip(NAMES, weights, strict=False)))
indices = st.integers(0, 3000) | st.integers(10**11, 10**12)


def spans_of(*spans: tuple[int, Mapping[str, float]]) -> list[MixtureSpan]:
    """The spans that begin at these windows with these weights."""
    return [MixtureSpan(first_window=first, weights=dict(weights)) for first, weights in spans]


def mixture_of(*stages: tuple[int, Mapping[str, float]]) -> Mixture:
    names = sorted({name for _, weights in stages for name in weights})
    return Mixture([MixtureSource(name, 1000, 10) for name in names], spans_of(*stages))


def turns(mixture: Mixture, first_index: int, count: int) -> list[tuple[str, int]]:
    """The name of the source and the position in it, for each sample."""
    sources, positions = mixture.locate(first_index, count)
    return [(mixture.sources[i].name, n) for i, n in zip(sources.tolist(), positions.tolist(), strict=True)]


def shares(weights: Mapping[str, float]) -> dict[str, Fraction]:
    total = sum(Fraction(str(weight)) for weight in weights.values())
    return {name: Fraction(str(weight)) / total for name, weight in weights.items()}


ROUNDED_WEIGHTS = dict(zip(NAMES, [999_999.999, 10**6, 10**6, *[5.355] * 37], strict=True))
"""More thousandths than a tree has parts. Almost all are rounded in the same direction, so shares move most."""


@settings(max_examples=80)
@given(weights_of_sources, indices)
@example(ROUNDED_WEIGHTS, 10**11)
def test_over_any_prefix_every_source_is_within_the_bound_of_its_share(weights, first_index):
    mixture = mixture_of((0, weights))
    exact, read_as = shares(weights), shares(mixture.weights_before(1)[0][1])
    for name, share in exact.items():
        assert abs(read_as[name] - share) <= Fraction(len(weights), ROUNDED_PARTS), name
    for num_samples in range(first_index, first_index + 200, 20):
        counts = mixture.counts(num_samples)
        assert sum(counts) == num_samples
        for source, count in zip(mixture.sources, counts, strict=True):
            assert abs(count - num_samples * read_as[source.name]) <= SHARE_BOUND, source.name


@settings(max_examples=40)
@given(weights_of_sources, weights_of_sources, st.integers(1, 3000), indices, st.lists(st.integers(0, 60), max_size=6))
@example({"a": 2, "b": 1}, {"a": 1}, 20, 0, [60])
def test_turns_follow_from_the_index_and_positions_count_up_across_stages(first, second, boundary, start, counts):
    stages, total = ((0, first), (boundary, second), (boundary + 20, first)), sum(counts)
    mixture, again = mixture_of(*stages), mixture_of(*stages)
    ends = np.cumsum([start, *counts]).tolist()
    parts = [turn for end, count in zip(ends, counts, strict=False) for turn in turns(again, end, count)]
    assert parts == turns(mixture, start, total)
    sources, positions = mixture.locate(start, total)
    for i, bounds in enumerate(zip(mixture.counts(start), mixture.counts(start + total), strict=True)):
        assert positions[sources == i].tolist() == list(range(*bounds))


@settings(max_examples=30)
@given(weights_of_sources, st.randoms(use_true_random=False), indices)
def test_another_order_of_the_sources_only_relabels_them(weights, random, start):
    order = list(weights)
    random.shuffle(order)
    sources = [MixtureSource(name, 1000, 10) for name in order]
    shuffled = Mixture(sources, spans_of((0, {name: weights[name] for name in order})))
    assert turns(shuffled, start, 50) == turns(mixture_of((0, weights)), start, 50)


def test_a_stage_with_the_weights_of_the_one_before_changes_nothing():
    once = mixture_of((0, {"a": 3, "b": 2}), (90, {"b": 1}))
    again = mixture_of((0, {"a": 3, "b": 2}), (37, {"b": 0.2, "a": 0.3}), (90, {"b": 5}), (400, {"b": 1}))
    assert turns(again, 0, 500) == turns(once, 0, 500)
    assert again.weights_before(91) == once.weights_before(91) == [(0, {"a": 3, "b": 2}), (90, {"b": 1})]
    assert once.weights_before(90) == [(0, {"a": 3, "b": 2})]


def limited(most: Mapping[str, float | None], *spans: tuple[int, Mapping[str, float]], **options) -> Mixture:
    """Sources of 100 windows of 10 tokens each."""
    return Mixture([MixtureSource(name, 1005, 10, n) for name, n in most.items()], spans_of(*spans), **options)


def test_a_mixture_ends_where_it_needs_a_source_too_often_and_names_it():
    mixture = limited({"wiki": 2, "web": None}, (0, {"wiki": 1, "web": 3}))
    assert mixture.end in range(800, 804)
    assert mixture.counts(mixture.end or 0)[0] == 200
    with pytest.raises(DataError, match=r"'wiki' has 1,005 tokens and may be read 2 times \(epochs_at_most\); raise"):
        mixture.require(1000)
    with pytest.raises(DataError, match=r"last for 8,0\d0 of 10,000 training tokens.*when_exhausted: others"):
        mixture.locate(990, 10)
    most, spans = {"a": 1, "b": None}, ((0, {"a": 1}), (100, {"b": 1}), (300, {"a": 1, "b": 3}))
    assert limited(most, *spans).end == 300, "a source used up by an earlier stage ends it where it is needed again"
    assert limited(most, *spans, when_exhausted="others").counts(700) == [100, 600]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 5)), min_size=1, max_size=6))
def test_when_all_sources_are_used_up_each_was_read_to_its_last_sample(limits):
    weights, most = ({name: pair[i] for name, pair in zip(NAMES, limits, strict=False)} for i in (0, 1))
    mixture, total = limited(most, (0, weights), when_exhausted="others"), 100 * sum(most.values())
    assert mixture.end == total
    assert mixture.counts(total) == [100 * epochs for epochs in most.values()]
    with pytest.raises(DataError, match=f"last for {10 * total:,} of"):
        mixture.require(total + 1)


STAGES = spans_of(
    (0, {"books": 0.6, "code": 0.3, "wiki": 0.1}), (100, {"books": 1, "wiki": 2}), (300, {"books": 0.25, "code": 0.75})
)
LENGTH = 16
NUM_TOKENS = {"books": 4001, "code": 1700, "wiki": 500}


def mixed_samples(datasets, spans, length, seed, most: Mapping[str, float] = {}, **options) -> TrainingSamples:
    """The samples of a mixture of `datasets`, written beside the first one. `most`: how often each may be read."""
    ingredients = [Ingredient(name, path, 1.0, most.get(name)) for name, path in datasets.items()]
    mixture = write_mixture(ingredients, next(iter(datasets.values())).parent)
    return TrainingSamples(mixture, length, seed, spans, **options)


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
def test_any_launch_and_resumption_gives_the_same_global_batches(datasets, samples, ranks, micro_batches, first_step):
    batch_size, size = 48, 48 // ranks // micro_batches
    readers = [mixed_samples(datasets, STAGES, LENGTH, seed=3) for _ in range(ranks)]
    for first in range(first_step * batch_size, (first_step + 3) * batch_size, batch_size):
        rows = np.empty((batch_size, LENGTH + 1), np.int64)
        for rank, reader in enumerate(readers):
            for place in range(rank * size, batch_size, ranks * size):
                rows[place : place + size] = reader.batch(first + place, size)
        assert np.array_equal(rows, samples.batch(first, batch_size))


def test_a_mixture_is_read_in_order_up_to_its_last_sample(datasets):
    samples = mixed_samples(datasets, STAGES, LENGTH, seed=3, most={"wiki": 1})
    end = samples.mixture.end or 0
    assert 100 < end < BLOCK_SAMPLES, "the last samples are not a whole block"
    in_order = np.concatenate([samples.batch(index, 1) for index in range(end)])
    assert (in_order == samples.batch(0, end)).all()
    with pytest.raises(DataError, match=rf"last for {end * LENGTH:,} of {(end + 1) * LENGTH:,} training tokens"):
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


def test_a_source_that_is_used_up_ends_the_pieces_with_its_last_window(datasets):
    stages, limits = spans_of((0, {"code": 1.0})), {"code": 1.0}
    pieces = mixed_samples({"code": datasets["code"]}, stages, 12, 7, limits, window_length=48)
    assert len(set(pieces.batch(0, 1700 // 48 * 4)[:, :-1].ravel().tolist())) == 1700 // 48 * 48
    with pytest.raises(DataError, match="the sources last for 1,680 of 1,728 training tokens"):
        pieces.batch(1700 // 48 * 4, 1)
