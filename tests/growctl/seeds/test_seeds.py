"""Means, intervals and differences over seeds, against scipy and against answers known beforehand."""

import importlib
import math
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from growctl.seeds.statistics import Interval, bootstrap, difference, group, mean_interval, t_quantile

LOSSES = st.floats(0.5, 10.0)
BY_SEED = st.dictionaries(st.integers(0, 9), LOSSES, min_size=2, max_size=8)
AGREES = 1e-6


@pytest.fixture(scope="module")
def stats():
    """scipy.stats, imported on use: every process of the suite collects this file, and one runs it."""
    return importlib.import_module("scipy.stats")


def ends(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    return interval.low, interval.high


@given(st.floats(0.001, 0.999), st.floats(1.0, 1e4))
@pytest.mark.slow
def test_the_quantiles_of_t_are_scipys(stats, probability, degrees):
    assert t_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=AGREES, abs=AGREES)


@pytest.mark.parametrize(
    ("degrees", "printed"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (120, 1.98)]
)
def test_the_95_percent_quantiles_are_those_of_printed_tables(degrees, printed):
    assert t_quantile(0.975, degrees) == pytest.approx(printed, abs=5e-4)


@pytest.mark.parametrize(("probability", "degrees"), [(0.0, 3), (1.0, 3), (0.5, 0.5), (0.5, math.inf)])
def test_quantiles_that_do_not_exist_are_refused(probability, degrees):
    with pytest.raises(ValueError, match="needs 0 < probability < 1 and degrees >= 1"):
        t_quantile(probability, degrees)


@given(BY_SEED)
def test_the_interval_of_a_mean_is_scipys(stats, losses):
    found, values = group(losses), list(losses.values())
    assert found.mean == pytest.approx(fmean(values))
    assert list(found.by_seed) == sorted(losses)
    assert found.deviation == pytest.approx(float(np.std(values, ddof=1)), rel=AGREES, abs=AGREES)
    if len(set(values)) > 1:
        expected = stats.t.interval(0.95, len(values) - 1, fmean(values), stats.sem(values))
        assert ends(found.interval) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert found.interval
    assert found.mean in found.interval


def test_one_seed_has_a_mean_but_no_interval():
    found = group({7: 2.5})
    assert (found.mean, found.deviation, found.interval) == (2.5, None, None)


def test_three_losses_have_the_interval_that_a_textbook_gives():
    assert ends(mean_interval([1.0, 2.0, 3.0])) == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-4)


@given(BY_SEED, st.floats(-2.0, 2.0))
def test_a_shift_shared_by_all_seeds_is_found_exactly_however_noisy_they_are(losses, shift):
    found = difference({seed: loss + shift for seed, loss in losses.items()}, losses)
    assert (found.method, found.seeds) == ("paired", tuple(sorted(losses)))
    assert found.mean == pytest.approx(shift, abs=1e-9)
    assert ends(found.interval) == pytest.approx((shift, shift), abs=1e-7)


@given(st.lists(st.tuples(LOSSES, LOSSES), min_size=2, max_size=6))
def test_groups_with_the_same_seeds_are_compared_pair_by_pair_as_scipy_does(stats, pairs):
    first, second = (dict(enumerate(losses)) for losses in zip(*pairs, strict=True))
    found, differences = difference(first, second), [a - b for a, b in pairs]
    if np.std(differences) > 1e-6:
        low, high = stats.ttest_rel(list(first.values()), list(second.values())).confidence_interval(0.95)
        assert ends(found.interval) == pytest.approx((low, high), rel=1e-4, abs=1e-5)


@given(st.lists(LOSSES, min_size=2, max_size=6), st.lists(LOSSES, min_size=2, max_size=6))
def test_groups_of_other_seeds_are_compared_by_welchs_interval_as_scipy_does(stats, first, second):
    found = difference(dict(enumerate(first)), dict(enumerate(second, start=100)))
    assert (found.method, found.seeds) == ("welch", ())
    if min(np.std(first), np.std(second)) > 1e-6:
        low, high = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
        assert ends(found.interval) == pytest.approx((low, high), rel=1e-4, abs=1e-5)


def test_only_the_seeds_in_common_count_in_pairs():
    found = difference({0: 2.0, 1: 2.1, 5: 9.0}, {0: 2.5, 1: 2.6, 7: 0.1})
    assert (found.method, found.seeds) == ("paired", (0, 1))
    assert found.mean == pytest.approx(-0.5)


@given(BY_SEED, BY_SEED)
def test_turning_the_comparison_round_turns_the_difference_round(first, second):
    one, other = difference(first, second), difference(second, first)
    assert one.mean == pytest.approx(-other.mean)
    assert ends(one.interval) == pytest.approx(tuple(-end for end in reversed(ends(other.interval))), abs=1e-9)
    assert one.within_noise == other.within_noise


def test_a_difference_smaller_than_the_spread_is_within_the_noise_and_a_larger_one_is_not():
    noisy, shifted = {0: 2.0, 1: 2.4, 2: 1.8}, {3: 2.1, 4: 2.3, 5: 1.9}
    assert difference(noisy, shifted).within_noise is True
    assert difference(noisy, {seed: loss + 3 for seed, loss in shifted.items()}).within_noise is False


@pytest.mark.parametrize("second", [{0: 2.5}, {1: 2.5}, {0: 2.5, 1: 2.6}])
def test_a_single_seed_cannot_tell_a_difference_from_noise(second):
    found = difference({0: 2.0}, second)
    assert (found.interval, found.within_noise) == (None, None)


@pytest.mark.parametrize(
    ("losses", "message"), [({}, "there are no losses"), ({3: math.nan}, "the loss of seed 3 is nan; leave runs that")]
)
def test_runs_without_a_final_loss_are_refused(losses, message):
    with pytest.raises(ValueError, match=message):
        group(losses)


SAVINGS = {0: 1.2, 1: 1.5, 2: 1.1, 3: 1.4}


def mean_saving(seeds) -> float:
    return fmean(SAVINGS[seed] for seed in seeds)


def test_a_bootstrap_gives_the_same_interval_every_time():
    found = bootstrap(list(SAVINGS), mean_saving)
    assert found == bootstrap([3, 1, 2, 0], mean_saving)
    assert found
    assert mean_saving(SAVINGS) in found


def test_a_bootstrap_of_a_mean_is_scipys(stats):
    values = np.random.default_rng(1).normal(2.0, 0.3, size=8)
    found = bootstrap(range(8), lambda seeds: float(np.mean(values[list(seeds)])))
    scipys = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(0)).confidence_interval
    assert ends(found) == pytest.approx((scipys.low, scipys.high), abs=0.02)


@given(st.lists(LOSSES, min_size=2, max_size=5))
def test_a_bootstrap_stays_within_what_the_seeds_themselves_give(values):
    low, high = ends(bootstrap(range(len(values)), lambda seeds: max(values[seed] for seed in seeds), resamples=200))
    assert min(values) <= low <= high <= max(values)


def test_everything_that_a_seed_trained_is_drawn_together_and_each_draw_is_computed_once():
    drawn = []
    bootstrap([4, 7, 9], lambda seeds: drawn.append(tuple(seeds)) or 1.0)
    assert len(drawn) == len(set(drawn)) == 10  # the ways to draw three of three with replacement
    assert all(len(seeds) == 3 and set(seeds) <= {4, 7, 9} for seeds in drawn)


def test_a_bootstrap_has_no_interval_for_one_seed_or_where_some_draws_have_no_value():
    assert bootstrap([0], mean_saving) is None
    assert bootstrap(list(SAVINGS), lambda seeds: None if set(seeds) == {2} else 1.0) is None
