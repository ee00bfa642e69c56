"""stages/data/mixture.py: whose turn it is at every sample, from the sample's index alone."""

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stages.data.errors import DataError
from stages.data.mixture import ROUNDED_PARTS, Mixture, MixtureSource
from tests.stages.data.mixtures import spans_of

NAMES = [f"source-{i}" for i in range(40)]
SHARE_BOUND = 1.68
"""A source's samples over any prefix of one piece differ by no more than this from its ideal share."""
weights_of_sources = st.lists(
    st.integers(1, 10**6) | st.floats(1e-4, 1e6, allow_nan=False).map(lambda x: round(x, 3) or 0.5),
    min_size=1,
    max_size=len(NAMES),
).map(lambda weights: dict(zip(NAMES, weights, strict=False)))
indices = st.integers(0, 3000) | st.integers(10**11, 10**12)


def mixture_of(*stages: tuple[int, Mapping[str, float]]) -> Mixture:
    names = sorted({name for _, weights in stages for name in weights})
    sources = [MixtureSource(name, 1000, 10) for name in names]
    return Mixture(sources, spans_of(*stages))


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
def test_over_any_prefix_every_source_is_within_the_bound_of_its_share(
    weights: dict[str, float], first_index: int
) -> None:
    mixture = mixture_of((0, weights))
    sources, _ = mixture.locate(first_index, 200)
    counts = dict(zip([source.name for source in mixture.sources], mixture.counts(first_index), strict=True))
    exact, read_as = shares(weights), shares(mixture.weights_before(1)[0][1])
    for name, share in exact.items():
        assert abs(read_as[name] - share) <= Fraction(len(weights), ROUNDED_PARTS), name
    for num_samples, source in enumerate(sources.tolist(), start=first_index + 1):
        counts[mixture.sources[source].name] += 1
        if num_samples % 20 == 0:
            assert sum(counts.values()) == num_samples
            for name, share in read_as.items():
                assert abs(counts[name] - num_samples * share) <= SHARE_BOUND, name


def test_the_worst_weights_for_the_tree_stay_within_the_bound() -> None:
    fibonacci = [1, 1]
    while len(fibonacci) < 20:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    weights = dict(zip(NAMES, fibonacci, strict=False))
    mixture = mixture_of((0, weights))
    sources, _ = mixture.locate(0, sum(fibonacci))
    numbers = np.arange(1, sum(fibonacci) + 1)
    for i, source in enumerate(mixture.sources):
        errors = np.cumsum(sources == i) - numbers * weights[source.name] / sum(fibonacci)
        assert np.abs(errors).max() < SHARE_BOUND
        assert errors[-1] == 0, "after as many samples as parts of weight, the shares are exact"


@settings(max_examples=40)
@given(weights_of_sources, weights_of_sources, st.integers(1, 3000), indices, st.lists(st.integers(0, 60), max_size=6))
def test_any_split_of_a_range_and_any_starting_index_gives_the_same_turns(
    first: dict[str, float], second: dict[str, float], boundary: int, start: int, counts: list[int]
) -> None:
    stages = ((0, first), (boundary, second), (boundary + 20, first))
    whole, again = turns(mixture_of(*stages), start, sum(counts)), mixture_of(*stages)
    parts, place = [], start
    for count in counts:
        parts += turns(again, place, count)
        place += count
    assert parts == whole


@settings(max_examples=40)
@given(weights_of_sources, weights_of_sources, st.integers(1, 150))
def test_the_positions_of_each_source_count_up_from_0_across_stages(
    first: dict[str, float], second: dict[str, float], boundary: int
) -> None:
    mixture = mixture_of((0, first), (boundary, second))
    sources, positions = mixture.locate(0, 300)
    for i, count in enumerate(mixture.counts(300)):
        assert positions[sources == i].tolist() == list(range(count))


@settings(max_examples=30)
@given(weights_of_sources, st.randoms(use_true_random=False), indices)
def test_another_order_of_the_sources_only_relabels_them(weights: dict[str, float], random, start: int) -> None:
    order = list(weights)
    random.shuffle(order)
    sources = [MixtureSource(name, 1000, 10) for name in order]
    shuffled = Mixture(sources, spans_of((0, {name: weights[name] for name in order})))
    assert turns(shuffled, start, 50) == turns(mixture_of((0, weights)), start, 50)


def test_the_turns_do_not_change_between_versions() -> None:
    mixture = mixture_of((0, {"a": 0.5, "b": 0.3, "c": 0.2}))
    assert "".join(name for name, _ in turns(mixture, 0, 20)) == "abacabacababacabacab"


def test_only_ratios_of_weights_matter_and_decimals_are_exact() -> None:
    tenths, wholes = mixture_of((0, {"a": 0.1, "b": 0.2})), mixture_of((0, {"a": 5, "b": 10}))
    assert turns(tenths, 10**12, 100) == turns(wholes, 10**12, 100)
    assert tenths.counts(3 * 10**11) == [10**11, 2 * 10**11]


def test_a_stage_with_the_weights_of_the_one_before_changes_nothing() -> None:
    once = mixture_of((0, {"a": 3, "b": 2}), (90, {"b": 1}))
    again = mixture_of((0, {"a": 3, "b": 2}), (37, {"b": 0.2, "a": 0.3}), (90, {"b": 5}), (400, {"b": 1}))
    assert turns(again, 0, 500) == turns(once, 0, 500)
    assert again.weights_before(91) == once.weights_before(91) == [(0, {"a": 3, "b": 2}), (90, {"b": 1})]
    assert once.weights_before(90) == [(0, {"a": 3, "b": 2})]


def limited(most: Mapping[str, float | None], weights: Mapping[str, float], **options) -> Mixture:
    """Sources of 100 windows of 10 tokens each."""
    sources = [MixtureSource(name, 1005, 10, epochs) for name, epochs in most.items()]
    return Mixture(sources, spans_of((0, weights)), **options)


def test_a_mixture_that_needs_a_source_too_often_names_it_and_its_need() -> None:
    mixture = limited({"wiki": 2, "web": None}, {"wiki": 1, "web": 3})
    assert mixture.end
    assert mixture.end in range(800, 804)
    assert mixture.counts(mixture.end)[0] == 200
    with pytest.raises(DataError, match=r"'wiki' has 1,005 tokens and may be read 2 times \(epochs_at_most\); raise"):
        mixture.require(1000)
    with pytest.raises(DataError, match=r"last for 8,0\d0 of 10,000 training tokens.*when_exhausted: others"):
        mixture.locate(990, 10)


def test_the_other_sources_take_over_in_proportion_when_one_is_used_up() -> None:
    mixture = limited({"a": 1.5, "b": None, "c": None}, {"a": 50, "b": 40, "c": 10}, when_exhausted="others")
    assert mixture.end is None
    assert mixture.counts(10**6)[0] == 150
    assert mixture.counts(300)[0] == 150
    b, c = (after - before for after, before in zip(mixture.counts(10_300)[1:], mixture.counts(300)[1:], strict=True))
    assert abs(b - 8000) <= 2 * SHARE_BOUND
    assert b + c == 10_000
    sources, positions = mixture.locate(0, 1000)
    for i, count in enumerate(mixture.counts(1000)):
        assert positions[sources == i].tolist() == list(range(count))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 5)), min_size=1, max_size=6))
def test_when_all_sources_are_used_up_each_was_read_to_its_last_sample(limits: list[tuple[int, int]]) -> None:
    most = {name: epochs for name, (_, epochs) in zip(NAMES, limits, strict=False)}
    weights = {name: weight for name, (weight, _) in zip(NAMES, limits, strict=False)}
    mixture = limited(most, weights, when_exhausted="others")
    total = 100 * sum(most.values())
    assert mixture.end == total
    assert mixture.counts(total) == [100 * epochs for epochs in most.values()]
    with pytest.raises(DataError, match=f"last for {10 * total:,} of"):
        mixture.require(total + 1)


def test_a_source_used_up_in_an_earlier_stage_ends_the_mixture_where_it_is_needed_again() -> None:
    stages = spans_of((0, {"a": 1}), (100, {"b": 1}), (300, {"a": 1, "b": 3}))
    sources = [MixtureSource("a", 1000, 10, 1), MixtureSource("b", 1000, 10)]
    assert Mixture(sources, stages).end == 300
    with pytest.raises(DataError, match=r"'a' has 1,000 tokens and may be read 1 time "):
        Mixture(sources, stages).require(700)
    assert Mixture(sources, stages, "others").counts(700) == [100, 600]
