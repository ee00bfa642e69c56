"""The judge's statistics: costs at a loss, intervals and verdicts."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import assume, given
from hypothesis import strategies as st

from growctl.analysis.statistics import Design, MeasuredArm, cost_at_loss, critical_values, design_of, judge, t_quantile

DOCUMENTED = [(0.5, 3.3688), (1.0, 2.9118), (2.0, 2.6661)]
NOISE = (0.011, -0.004, -0.007, 0.009, -0.006, 0.003, 0.001, -0.012, 0.008, 0.002, -0.001, 0.007)

floats = st.floats(allow_nan=False, allow_infinity=False)
noises = st.lists(st.floats(-0.03, 0.03), min_size=12, max_size=12)


def arms(points, noise=NOISE, seeds=(0, 1, 2), name="control"):
    """An arm for each pair of cost and mean loss, with its own stretch of the noise."""
    found = []
    for i, (cost, loss) in enumerate(points):
        own = np.array([noise[(5 * i + 3 * k + i * k) % len(noise)] for k in range(len(seeds))])
        found.append(
            MeasuredArm(f"{name} {cost}", cost, dict(zip(seeds, (loss + own - own.mean()).tolist(), strict=True)))
        )
    return found


def ladder(loss, cost=1.0, noise=NOISE, seeds=(0, 1, 2)):
    return arms([(cost, loss)], noise[1:] + noise[:1], seeds, "ladder")[0]


def interval(found):
    """The ends of a multiplier's interval, 0 and infinity where it is open."""
    low, high = found.multiplier.low, found.multiplier.high
    return low or 0.0, high or math.inf


def law(exponent, factor=0.5, floor=2.4):
    return lambda cost: floor + factor * cost**-exponent


# What a curve costs at a loss


def test_the_documented_losses_cost_1_36_by_the_power_law_and_1_44_by_the_chord():
    assert cost_at_loss(DOCUMENTED, 2.7831)[0] == pytest.approx(1.363, abs=5e-4)
    assert cost_at_loss(DOCUMENTED, 2.7831)[1] == "power law"
    assert cost_at_loss(DOCUMENTED[1:], 2.7831)[0] == pytest.approx(1.438, abs=5e-4)
    assert cost_at_loss(DOCUMENTED[1:], 2.7831)[1] == "chord"


@given(
    st.floats(0.05, 1.9), st.floats(0.01, 10), st.floats(-5, 5), st.floats(0.01, 0.99),
    st.lists(st.floats(1.2, 4.0), min_size=2, max_size=5), st.floats(1e-3, 1e20),
)  # fmt: skip
def test_losses_on_a_power_law_give_that_law(exponent, factor, floor, share, ratios, start):
    costs = [start * math.prod(ratios[:i]) for i in range(len(ratios) + 1)]
    true = law(exponent, factor * start**exponent, floor)
    wanted = costs[0] ** (1 - share) * costs[-1] ** share
    found = cost_at_loss([(cost, true(cost)) for cost in costs], true(wanted))
    assert found == (pytest.approx(wanted, rel=1e-4), "power law")


@given(st.floats(0.05, 1.9), st.floats(0.01, 0.99), st.floats(1.1, 30.0))
def test_a_chord_is_never_cheaper_than_a_convex_curve_through_its_ends(exponent, share, ratio):
    true = law(exponent)
    wanted = ratio**share
    found = cost_at_loss([(1.0, true(1.0)), (ratio, true(ratio))], true(wanted))
    assert found[1] == "chord"
    assert (found[0] or 0.0) >= wanted * (1 - 1e-9)


def test_a_curve_is_never_extrapolated():
    assert cost_at_loss(DOCUMENTED, 2.6) == (None, "not reached")
    assert cost_at_loss(DOCUMENTED, 3.4) == (None, "not bracketed")
    assert cost_at_loss([], 3.0) == (None, "no curve")
    assert cost_at_loss([(2.0, 3.0)], 3.0) == (2.0, "chord")
    assert cost_at_loss(DOCUMENTED, 3.3688)[0] == pytest.approx(0.5)
    assert cost_at_loss(DOCUMENTED, 2.6661)[0] == pytest.approx(2.0)


def test_losses_that_are_concave_give_a_chord():
    found = cost_at_loss([(1.0, 3.0), (2.0, 2.9), (4.0, 2.5)], 2.7)
    assert found == (pytest.approx(2.0 * 2**0.5), "chord")


def test_a_dearer_model_with_a_higher_loss_counts_as_the_cheaper_one():
    worse_at_end = [*DOCUMENTED, (4.0, 2.9)]
    assert cost_at_loss(worse_at_end, 2.6661)[0] == pytest.approx(2.0)
    assert cost_at_loss(worse_at_end, 2.6)[1] == "not reached"


def test_of_two_controls_that_cost_the_same_the_better_counts():
    repeated = [(0.99, 3.1), *DOCUMENTED, (1.005, 2.95)]
    assert cost_at_loss(repeated, 2.8) == cost_at_loss(DOCUMENTED, 2.8)


def test_where_losses_follow_no_single_law_the_curve_is_far_closer_than_a_fitted_law():
    def true(cost):
        return 2.2 + 0.4 * cost**-0.2 + 0.2 * cost**-1.5

    def law_of(cost, floor, factor, exponent):
        return floor + factor * cost**-exponent

    budgets, wanted = np.array([0.25, 0.5, 1.0, 2.0, 4.0]), 1.5
    fitted, _ = scipy.optimize.curve_fit(law_of, budgets, true(budgets), p0=[2.4, 0.5, 0.9])
    found = cost_at_loss(list(zip(budgets, true(budgets), strict=True)), true(wanted))[0] or math.inf
    by_fit = scipy.optimize.brentq(lambda cost: law_of(cost, *fitted) - true(wanted), 0.5, 4.0)
    assert abs(found - wanted) < 0.1 * abs(by_fit - wanted)


# Verdicts


def test_a_clear_saving_is_won_with_an_interval_around_it():
    found = judge([ladder(2.7831)], [arms(DOCUMENTED)])
    assert found.outcome == "won"
    low, high = interval(found)
    assert 1 < low < 1.363 < high < 2
    assert found.multiplier.estimate == pytest.approx(1.363, abs=5e-4)
    assert found.multiplier.kind == "power law"
    assert found.multiplier.loss_interval == pytest.approx((-0.1344, -0.1230), abs=1e-4)
    assert found.seeds == (0, 1, 2)


def test_a_clear_loss_is_lost():
    found = judge([ladder(3.1)], [arms(DOCUMENTED)])
    assert found.outcome == "lost"
    assert interval(found)[1] < 1
    assert found.multiplier.loss_difference == pytest.approx(3.1 - 2.9118)


def test_a_small_difference_is_within_the_noise_and_the_detectable_one_is_said():
    found = judge([ladder(2.91)], [arms(DOCUMENTED)])
    assert found.outcome == "within the noise"
    low, high = interval(found)
    assert 0 < low < 1 < high < 2
    assert found.detectable is not None
    assert 0.001 < found.detectable < 0.1


def test_one_seed_has_an_estimate_and_no_verdict():
    found = judge([ladder(2.7831, seeds=(0,), noise=(0.0,))], [arms(DOCUMENTED, (0.0,), (0,))])
    assert found.outcome == "unknown"
    assert found.multiplier.estimate == pytest.approx(1.363, abs=5e-4)
    assert (found.multiplier.low, found.multiplier.high, found.detectable, found.degrees) == (None, None, None, 0.0)
    assert found.multiplier.loss_difference == pytest.approx(2.7831 - 2.9118)


@pytest.mark.parametrize("incomplete", [0, 1, 3])
def test_a_bad_seed_of_the_ladder_stays_although_controls_of_it_are_missing(incomplete):
    """Savings of about 1.20, 1.21 and, for seed 2, a loss: controls that one seed lacks must not decide."""
    saved = dict(zip((0, 1, 2), (2.845, 2.843, 2.97), strict=True))
    controls = arms(DOCUMENTED)
    for arm in controls[:incomplete]:
        del arm.losses[2]
    found = judge([MeasuredArm("ladder", 1.0, saved)], [controls])
    assert found.outcome == "within the noise"
    assert found.multiplier.loss_difference == pytest.approx(
        np.mean(list(saved.values())) - np.mean(list(controls[1].losses.values()))
    )


def test_one_seed_of_the_ladder_or_of_every_control_tells_no_noise():
    assert judge([ladder(2.7, seeds=(0,))], [arms(DOCUMENTED)]).outcome == "unknown"
    assert judge([ladder(2.7)], [arms(DOCUMENTED, seeds=(0,))]).outcome == "unknown"


def test_without_curves_nothing_is_known():
    found = judge([ladder(2.7)], [])
    assert (found.outcome, found.curve, found.multiplier.kind) == ("unknown", None, "no curve")


def test_nothing_wins_against_a_size_that_was_not_measured_but_it_can_lose():
    assert judge([ladder(2.7)], [arms(DOCUMENTED), []]).outcome != "won"
    assert judge([ladder(2.7)], [arms(DOCUMENTED), []]).multiplier.low is None
    assert judge([ladder(3.1)], [arms(DOCUMENTED), []]).outcome == "lost"


def test_a_single_control_of_the_same_cost_is_compared_at_equal_cost():
    for cost in (0.985, 1.0, 1.015):
        assert judge([ladder(2.7)], [arms([(cost, 2.9118)])]).outcome == "won"
        assert judge([ladder(3.1)], [arms([(cost, 2.9118)])]).outcome == "lost"
        assert judge([ladder(2.9118)], [arms([(cost, 2.9118)])]).outcome == "within the noise"


def test_a_control_of_a_quarter_of_the_cost_can_beat_the_ladder_but_not_lose():
    cheap = arms([(0.25, 2.9118)])
    assert judge([ladder(3.1)], [cheap]).outcome == "lost"
    found = judge([ladder(2.7)], [cheap])
    assert (found.outcome, found.multiplier.kind) == ("unknown", "not reached")
    assert (found.multiplier.low, found.multiplier.high) == (pytest.approx(0.25), None)
    assert found.multiplier.loss_difference is None


def test_a_control_of_four_times_the_cost_can_lose_against_the_ladder_but_not_beat_it():
    dear = arms([(4.0, 2.9118)])
    assert judge([ladder(2.7)], [dear]).outcome == "won"
    found = judge([ladder(3.1)], [dear])
    assert (found.outcome, found.multiplier.kind) == ("unknown", "not bracketed")
    assert (found.multiplier.low, found.multiplier.high) == (None, pytest.approx(4.0))


def test_a_loss_that_no_control_reaches_leaves_the_interval_open():
    found = judge([ladder(2.5)], [arms(DOCUMENTED)])
    assert (found.outcome, found.multiplier.estimate, found.multiplier.kind) == ("won", None, "not reached")
    assert (found.multiplier.low, found.multiplier.high) == (pytest.approx(2.0), None)


def test_a_chord_does_not_win_by_its_own_bias():
    """At the ladder's cost, the chord lies 0.23 above the law; the ladder is in between."""
    true = law(1.0)
    ends = [(0.4, true(0.4)), (2.5, true(2.5))]
    loss = true(1.0) + 0.04
    assert judge([ladder(loss)], [arms([ends[0], (1.0, true(1.0)), ends[1]])]).outcome == "lost"
    found = judge([ladder(loss)], [arms(ends)])
    assert (found.outcome, found.multiplier.kind) == ("within the noise", "chord")
    low, high = interval(found)
    assert 0.4 < low < 1 < 1.38 < high
    assert judge([ladder(2.55)], [arms(ends)]).outcome == "won", "below every power law through the two points"


def test_the_best_size_decides():
    worse = [(cost, loss + 0.2) for cost, loss in DOCUMENTED]
    found = judge([ladder(2.7831)], [arms(worse), arms(DOCUMENTED)])
    alone = judge([ladder(2.7831)], [arms(DOCUMENTED)])
    assert (found.curve, found.outcome) == (1, "won")
    assert found.multiplier.estimate == pytest.approx(alone.multiplier.estimate)
    assert judge([ladder(2.9118)], [arms(worse), arms(DOCUMENTED)]).outcome == "within the noise"
    assert judge([ladder(3.0)], [arms(worse), arms(DOCUMENTED)]).outcome == "lost"


def test_a_size_that_was_only_measured_far_cheaper_keeps_a_win_unknown():
    found = judge([ladder(2.7)], [arms(DOCUMENTED), arms([(0.25, 3.3)])])
    assert (found.outcome, found.curve) == ("unknown", 0)


def test_choosing_among_policies_makes_it_harder_to_win_and_among_sizes_to_lose():
    policies = [ladder(2.9 + 0.001 * i, noise=NOISE[i:] + NOISE[:i]) for i in range(10)]
    alone = judge(policies[:1], [arms(DOCUMENTED)])
    assert alone.critical[0] == alone.critical[1] == pytest.approx(t_quantile(0.975, alone.degrees))
    many = judge(policies, [arms(DOCUMENTED)])
    assert many.critical[0] > 1.1 * many.critical[1]
    sizes = judge(policies[:1], [arms(DOCUMENTED), arms(DOCUMENTED, NOISE[2:]), arms(DOCUMENTED, NOISE[3:])])
    assert sizes.critical[1] > 1.05 * sizes.critical[0]


def test_what_the_runs_of_a_seed_share_cancels():
    shift = {0: 0.5, 1: -0.3, 2: 0.1}

    def shifted(arm):
        return dataclasses.replace(arm, losses={seed: loss + shift[seed] for seed, loss in arm.losses.items()})

    plain = judge([ladder(2.7831)], [arms(DOCUMENTED)])
    shared = judge([shifted(ladder(2.7831))], [[shifted(arm) for arm in arms(DOCUMENTED)]])
    assert (shared.multiplier.low, shared.multiplier.high) == pytest.approx(
        (plain.multiplier.low, plain.multiplier.high)
    )


def test_sides_without_common_seeds_still_compare():
    found = judge([ladder(2.7831, seeds=(7, 8, 9))], [arms(DOCUMENTED)])
    assert found.outcome == "won"
    assert found.degrees > 2


# Properties of every verdict


def assert_same(found, other, rel=1e-6):
    assert found.outcome == other.outcome
    ours, theirs = (
        [
            one.multiplier.estimate,
            one.multiplier.low,
            one.multiplier.high,
            one.multiplier.loss_difference,
            one.detectable,
        ]
        for one in (found, other)
    )
    assert [value is None for value in ours] == [value is None for value in theirs]
    assert [v for v in ours if v is not None] == pytest.approx([v for v in theirs if v is not None], rel=rel, abs=1e-7)


losses_of_ladders = st.floats(2.4, 3.6)
costs_of_ladders = st.sampled_from([0.2, 0.5, 0.8, 1.0, 1.3, 2.0, 5.0])


@pytest.mark.slow
@given(noises, losses_of_ladders, costs_of_ladders, st.integers(2, 4), st.integers(1, 3), st.integers(1, 3))
def test_an_interval_holds_its_estimate_and_agrees_with_the_outcome(noise, loss, cost, seeds, points, sizes):
    curves = [arms(DOCUMENTED[:points], noise[i:] + noise[:i], range(seeds)) for i in range(sizes)]
    found = judge([ladder(loss, cost, noise, range(seeds))], curves)
    of, (low, high) = found.multiplier, interval(found)
    assert low <= high
    assert of.estimate is None or low <= of.estimate <= high
    assert (found.outcome == "won") <= (low >= 1)
    assert (found.outcome == "lost") <= (high <= 1)
    if found.outcome == "within the noise":
        assert low <= 1 <= high
    if of.loss_interval and of.loss_difference is not None and points == 3:
        assert of.loss_interval[0] <= of.loss_difference <= of.loss_interval[1]


@pytest.mark.slow
@given(noises, losses_of_ladders, st.floats(-3, 3), st.floats(1e-10, 1e25))
def test_neither_a_shift_of_all_losses_nor_the_unit_of_cost_matters(noise, loss, shift, unit):
    found = judge([ladder(loss, 1.0, noise)], [arms(DOCUMENTED, noise)])
    shifted = [(cost * unit, loss + shift) for cost, loss in DOCUMENTED]
    assume(found.deviation > 1e-4 and all(abs(loss - measured) > 1e-4 for _, measured in DOCUMENTED))
    assert_same(judge([ladder(loss + shift, unit, noise)], [arms(shifted, noise)]), found, rel=1e-4)


@pytest.mark.slow
@given(noises, losses_of_ladders, st.permutations(range(3)))
def test_the_order_of_arms_does_not_matter(noise, loss, order):
    curve = arms(DOCUMENTED, noise)
    assert_same(
        judge([ladder(loss, 1.0, noise)], [[curve[i] for i in order]]), judge([ladder(loss, 1.0, noise)], [curve])
    )


@pytest.mark.slow
@given(st.floats(0.1, 1.8), st.floats(0.3, 3.5))
def test_without_noise_the_true_multiplier_is_found(exponent, multiplier):
    true = law(exponent)
    found = judge([ladder(true(multiplier), noise=(0.0,))], [arms([(c, true(c)) for c in (0.25, 1.0, 4.0)], (0.0,))])
    assert found.multiplier.estimate == pytest.approx(multiplier, rel=1e-5)
    assert (found.multiplier.low, found.multiplier.high) == pytest.approx((multiplier, multiplier), rel=1e-2)


# The noise


@given(st.floats(0.001, 0.999), st.floats(1.0, 200.0))
def test_t_quantiles_are_those_of_scipy(probability, degrees):
    assert t_quantile(probability, degrees) == pytest.approx(
        scipy.stats.t.ppf(probability, degrees), rel=1e-6, abs=1e-9
    )


def test_arms_with_the_same_seeds_have_plain_means_and_two_way_residuals():
    losses = np.random.default_rng(0).normal(size=(1, 4, 3))
    design = Design([[0, 1, 2]] * 4)
    assert losses.reshape(1, -1) @ design.to_means.T == pytest.approx(losses.mean(axis=2))
    residuals = losses - losses.mean(axis=1, keepdims=True) - losses.mean(axis=2, keepdims=True) + losses.mean()
    assert design.degrees == 6
    assert design.variances(losses.reshape(1, -1)) == pytest.approx((residuals**2).sum() / 6)


UNEQUAL_SEEDS = [[[0, 1, 2], [0, 1], [0, 1, 2], [1, 2]], [[0, 1, 2, 3, 4], [0, 1, 2]], [[0, 1, 2], [3, 4, 5]]]


@pytest.mark.parametrize("seeds", [[[0, 1, 2]] * 4, *UNEQUAL_SEEDS])
def test_the_variance_of_a_comparison_is_unbiased_where_all_runs_are_equally_noisy(seeds):
    design = Design(seeds)
    contrast = np.array([1.0, -1.0, *[0.0] * (len(seeds) - 2)])
    losses = np.random.default_rng(0).normal(size=(20_000, sum(map(len, seeds))))
    differences = losses @ design.to_means.T @ contrast
    estimated = contrast @ design.covariance(losses, design.noise(contrast)) @ contrast
    assert estimated.mean() == pytest.approx(differences.var(), rel=0.04)


@pytest.mark.parametrize("num_seeds", [2, 3, 5])
@pytest.mark.parametrize("noisy", [0, 3])
def test_a_test_holds_where_the_ladder_or_a_control_is_twice_as_noisy(num_seeds, noisy):
    design, contrast = design_of((tuple(range(num_seeds)),) * 4), np.array([1.0, 0.0, 0.0, -1.0])
    losses = np.random.default_rng(0).normal(size=(20_000, 4, num_seeds))
    losses[:, noisy] *= 2
    losses, noise = losses.reshape(20_000, -1), design.noise(contrast)
    errors = np.sqrt(contrast @ design.covariance(losses, noise) @ contrast)
    rejected = abs(losses @ design.to_means.T @ contrast) > t_quantile(0.975, noise.degrees) * errors
    assert 0.02 < rejected.mean() < 0.065


@pytest.mark.parametrize("shared", [0.0, 2.0])
@pytest.mark.parametrize("seeds", UNEQUAL_SEEDS)
def test_a_test_holds_where_seeds_are_missing(seeds, shared):
    design, contrast = Design(seeds), np.array([1.0, -1.0, *[0.0] * (len(seeds) - 2)])
    rng = np.random.default_rng(0)
    of_seeds = shared * rng.normal(size=(20_000, 6))
    losses = np.concatenate([of_seeds[:, own] + rng.normal(size=(20_000, len(own))) for own in seeds], axis=1)
    noise = design.noise(contrast)
    errors = np.sqrt(contrast @ design.covariance(losses, noise) @ contrast)
    rejected = abs(losses @ design.to_means.T @ contrast) > t_quantile(0.975, noise.degrees) * errors
    assert rejected.mean() < 0.06


def test_two_arms_are_compared_as_pairs():
    """With nothing to pool, the test is the paired t test."""
    one, other = {0: 3.0, 1: 3.02, 2: 2.97}, {0: 3.05, 1: 3.04, 2: 3.03}
    found = judge([MeasuredArm("ladder", 1.0, one)], [[MeasuredArm("control", 1.0, other)]])
    interval = scipy.stats.ttest_rel(list(one.values()), list(other.values())).confidence_interval(0.95)
    assert found.multiplier.loss_interval == pytest.approx((interval.low, interval.high))
    assert found.degrees == pytest.approx(2)


def test_critical_values_of_the_best_of_several_hold_in_simulation():
    design = design_of(((0, 1, 2),) * 6)
    contrasts = np.array([[np.eye(6)[5] - np.eye(6)[i] for i in range(5)]])
    degrees = design.noise(contrasts[0, 0]).degrees
    to_win, to_lose = critical_values(design, contrasts, 0, degrees)
    losses = np.random.default_rng(1).normal(size=(20_000, 18))
    largest = np.max(
        [
            losses @ design.to_means.T @ row / np.sqrt(row @ design.covariance(losses, design.noise(row)) @ row)
            for row in contrasts[0]
        ],
        axis=0,
    )
    assert (largest > to_win).mean() == pytest.approx(0.025, abs=0.005)
    assert to_lose == t_quantile(0.975, degrees)


def test_a_win_takes_the_critical_value_of_the_curve_that_asks_for_most():
    """A curve with one noisy seed of its own is less correlated over the ladders than one that shares theirs."""
    design = design_of(((0, 1, 2),) * 5 + ((3, 4, 5),))
    shared, own = ([np.eye(6)[curve] - np.eye(6)[i] for i in range(4)] for curve in (4, 5))
    degrees = min(design.noise(row).degrees for row in (*shared, *own))
    one, other = (critical_values(design, np.array([rows]), 0, degrees)[0] for rows in (shared, own))
    assert abs(one - other) > 0.01
    for order in ([shared, own], [own, shared]):
        assert critical_values(design, np.array(order), 0, degrees)[0] == pytest.approx(max(one, other))


def test_the_order_of_the_curves_decides_nothing():
    curves = [arms([(0.5, 2.9), (1.0, 2.5), (2.0, 2.2)]), arms([(0.25, 4.0), (0.5, 3.0)])]
    there, back = (judge([ladder(2.52)], each) for each in (curves, curves[::-1]))
    assert dataclasses.replace(back, curve=there.curve) == there
    assert {there.curve, back.curve} == {0, 1}
