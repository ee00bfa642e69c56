"""The judge's statistics: costs at a loss, intervals and verdicts."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from growctl.analysis.statistics import Design, MeasuredArm, cost_at_loss, critical_values, design_of, judge, t_quantile

DOCUMENTED = [(0.5, 3.3688), (1.0, 2.9118), (2.0, 2.6661)]
NOISE = (0.011, -0.004, -0.007, 0.009, -0.006, 0.003, 0.001, -0.012, 0.008, 0.002, -0.001, 0.007)

noises = st.lists(st.floats(-0.03, 0.03), min_size=12, max_size=12)
few = settings(max_examples=30)


def arms(points, noise=NOISE, seeds=(0, 1, 2), name="control"):
    """An arm for each pair of cost and mean loss, with its own stretch of the noise."""
    found = []
    for i, (cost, loss) in enumerate(points):
        own = np.array([noise[(5 * i + 3 * k + i * k) % len(noise)] for k in range(len(seeds))])
        losses = (loss + own - own.mean()).tolist()
        found.append(MeasuredArm(f"{name} {cost}", cost, dict(zip(seeds, losses, strict=True))))
    return found


def ladder(loss, cost=1.0, noise=NOISE, seeds=(0, 1, 2)):
    return arms([(cost, loss)], noise[1:] + noise[:1], seeds, "ladder")[0]


def interval(found):
    """The ends of a multiplier's interval, 0 and infinity where it is open."""
    return found.multiplier.low or 0.0, found.multiplier.high or math.inf


def law(exponent, factor=0.5, floor=2.4):
    return lambda cost: floor + factor * cost**-exponent


@pytest.mark.parametrize(
    ("points", "loss", "cost", "kind"),
    [
        (DOCUMENTED, 2.7831, 1.363, "power law"),
        (DOCUMENTED[1:], 2.7831, 1.438, "chord"),
        (DOCUMENTED, 3.3688, 0.5, "power law"),
        (DOCUMENTED, 2.6661, 2.0, "power law"),
        (DOCUMENTED, 2.6, None, "not reached"),
        (DOCUMENTED, 3.4, None, "not bracketed"),
        ([], 3.0, None, "no curve"),
        ([(2.0, 3.0)], 3.0, 2.0, "chord"),
        ([(1.0, 3.0), (2.0, 2.9), (4.0, 2.5)], 2.7, 2.0 * 2**0.5, "chord"),  # concave
        ([*DOCUMENTED, (4.0, 2.9)], 2.6661, 2.0, "power law"),  # a dearer model that ended worse
        ([*DOCUMENTED, (4.0, 2.9)], 2.6, None, "not reached"),
        ([(0.99, 3.1), *DOCUMENTED, (1.005, 2.95)], 2.7831, 1.363, "power law"),  # worse ones of the same cost
    ],
)
def test_the_cost_of_a_loss_is_interpolated_and_never_extrapolated(points, loss, cost, kind):
    assert cost_at_loss(points, loss) == (pytest.approx(cost, abs=5e-4), kind)


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


def test_losses_that_follow_no_single_law_are_still_close():
    def true(cost):
        return 2.2 + 0.4 * cost**-0.2 + 0.2 * cost**-1.5

    found = cost_at_loss([(cost, true(cost)) for cost in (0.25, 0.5, 1.0, 2.0, 4.0)], true(1.5))
    assert found == (pytest.approx(1.5, rel=5e-4), "power law")


@given(st.floats(0.05, 1.9), st.floats(0.01, 0.99), st.floats(1.1, 30.0))
def test_a_chord_is_never_cheaper_than_a_convex_curve_through_its_ends(exponent, share, ratio):
    true = law(exponent)
    cost, kind = cost_at_loss([(1.0, true(1.0)), (ratio, true(ratio))], true(ratio**share))
    assert (kind, (cost or 0.0) >= ratio**share * (1 - 1e-9)) == ("chord", True)


WORSE = [(cost, loss + 0.2) for cost, loss in DOCUMENTED]
CHEAP, DEAR, QUARTER = [(0.25, 2.9118)], [(4.0, 2.9118)], [(0.25, 3.3)]
CHORD = [(0.4, law(1.0)(0.4)), (2.5, law(1.0)(2.5))]
"""At the ladder's cost, it lies 0.23 above the law through its ends."""


@pytest.mark.parametrize(
    ("loss", "curves", "outcome", "kind", "low", "high"),
    [
        (2.7831, [DOCUMENTED], "won", "power law", 1.333, 1.398),
        (3.1, [DOCUMENTED], "lost", "power law", 0.706, 0.720),
        (2.91, [DOCUMENTED], "within the noise", "power law", 0.992, 1.016),
        (2.5, [DOCUMENTED], "won", "not reached", 2.0, None),
        (2.7, [], "unknown", "no curve", None, None),
        (2.7, [DOCUMENTED, []], "unknown", "power law", None, 1.861),
        (3.1, [DOCUMENTED, []], "lost", "power law", None, 0.720),
        (3.1, [CHEAP], "lost", "not bracketed", None, 0.25),
        (2.7, [CHEAP], "unknown", "not reached", 0.25, None),
        (2.7, [DEAR], "won", "not reached", 4.0, None),
        (3.1, [DEAR], "unknown", "not bracketed", None, 4.0),
        (2.94, [CHORD], "within the noise", "chord", 0.684, 1.384),
        (2.94, [[CHORD[0], (1.0, 2.9), CHORD[1]]], "lost", "power law", 0.916, 0.936),
        (2.55, [CHORD], "won", "not reached", 2.5, None),  # below every power law through both points
        (2.7831, [WORSE, DOCUMENTED], "won", "power law", 1.334, 1.397),
        (2.9118, [WORSE, DOCUMENTED], "within the noise", "power law", 0.989, 1.012),
        (3.0, [WORSE, DOCUMENTED], "lost", "power law", 0.834, 0.851),
        (2.7, [DOCUMENTED, QUARTER], "unknown", "power law", 0.25, 1.863),
    ],
)
def test_a_verdict_follows_from_the_losses_beside_the_curves(loss, curves, outcome, kind, low, high):
    found = judge([ladder(loss)], [arms(curve) for curve in curves])
    assert (found.outcome, found.multiplier.kind) == (outcome, kind)
    assert (found.multiplier.low, found.multiplier.high) == pytest.approx((low, high), abs=1e-3)


def test_a_verdict_names_its_curve_its_seeds_and_its_difference_in_loss():
    found = judge([ladder(2.7831)], [arms(WORSE), arms(DOCUMENTED)])
    assert (found.curve, found.seeds, found.multiplier.estimate) == (1, (0, 1, 2), pytest.approx(1.363, abs=5e-4))
    alone = judge([ladder(2.7831)], [arms(DOCUMENTED)])
    assert alone.multiplier.loss_difference == pytest.approx(2.7831 - 2.9118)
    assert alone.multiplier.loss_interval == pytest.approx((-0.1344, -0.1230), abs=1e-4)
    assert alone.detectable == pytest.approx(0.0074, abs=1e-4)
    assert judge([ladder(2.7)], [arms(CHEAP)]).multiplier.loss_difference is None


@pytest.mark.parametrize(("ladders", "controls"), [((0,), (0,)), ((0,), (0, 1, 2)), ((0, 1, 2), (0,))])
def test_one_seed_of_the_ladder_or_of_every_control_has_an_estimate_and_no_verdict(ladders, controls):
    found = judge([ladder(2.7831, seeds=ladders)], [arms(DOCUMENTED, seeds=controls)])
    of = found.multiplier
    assert (found.outcome, of.low, of.high, found.detectable) == ("unknown", None, None, None)
    assert of.estimate == pytest.approx(1.363, abs=5e-4)
    assert of.loss_difference == pytest.approx(2.7831 - 2.9118)


@pytest.mark.parametrize("incomplete", [0, 1, 3])
def test_a_bad_seed_of_the_ladder_stays_although_controls_of_it_are_missing(incomplete):
    """Savings of about 1.20, 1.21 and, for seed 2, a loss: controls that one seed lacks must not decide."""
    saved = {0: 2.845, 1: 2.843, 2: 2.97}
    controls = arms(DOCUMENTED)
    for arm in controls[:incomplete]:
        del arm.losses[2]
    found = judge([MeasuredArm("ladder", 1.0, saved)], [controls])
    means = [np.mean(list(losses.values())) for losses in (saved, controls[1].losses)]
    assert (found.outcome, found.multiplier.loss_difference) == ("within the noise", pytest.approx(means[0] - means[1]))


@pytest.mark.parametrize("cost", [0.985, 1.0, 1.015])
@pytest.mark.parametrize(("loss", "outcome"), [(2.7, "won"), (3.1, "lost"), (2.9118, "within the noise")])
def test_a_single_control_of_the_same_cost_is_compared_at_equal_cost(cost, loss, outcome):
    assert judge([ladder(loss)], [arms([(cost, 2.9118)])]).outcome == outcome


def test_choosing_among_policies_makes_it_harder_to_win_and_among_sizes_to_lose():
    policies = [ladder(2.9 + 0.001 * i, noise=NOISE[i:] + NOISE[:i]) for i in range(10)]
    alone = judge(policies[:1], [arms(DOCUMENTED)])
    assert alone.critical[0] == alone.critical[1] == pytest.approx(t_quantile(0.975, alone.degrees))
    many = judge(policies, [arms(DOCUMENTED)])
    assert many.critical[0] > 1.1 * many.critical[1]
    sizes = judge(policies[:1], [arms(DOCUMENTED), arms(DOCUMENTED, NOISE[2:]), arms(DOCUMENTED, NOISE[3:])])
    assert sizes.critical[1] > 1.05 * sizes.critical[0]


def test_the_order_of_the_curves_decides_nothing():
    curves = [arms([(0.5, 2.9), (1.0, 2.5), (2.0, 2.2)]), arms([(0.25, 4.0), (0.5, 3.0)])]
    there, back = (judge([ladder(2.52)], each) for each in (curves, curves[::-1]))
    assert dataclasses.replace(back, curve=there.curve) == there
    assert {there.curve, back.curve} == {0, 1}


losses_of_ladders = st.floats(2.4, 3.6)
costs_of_ladders = st.sampled_from([0.2, 0.5, 0.8, 1.0, 1.3, 2.0, 5.0])


@few
@given(noises, losses_of_ladders, costs_of_ladders, st.integers(2, 4), st.integers(1, 3), st.integers(1, 3))
def test_an_interval_holds_its_estimate_and_agrees_with_the_outcome(noise, loss, cost, seeds, points, sizes):
    curves = [arms(DOCUMENTED[:points], noise[i:] + noise[:i], range(seeds)) for i in range(sizes)]
    found = judge([ladder(loss, cost, noise, range(seeds))], curves)
    of, (low, high) = found.multiplier, interval(found)
    assert low <= high
    assert of.estimate is None or low <= of.estimate <= high
    assert (found.outcome == "won") <= (low >= 1)
    assert (found.outcome == "lost") <= (high <= 1)
    assert (found.outcome == "within the noise") <= (low <= 1 <= high)
    if of.loss_interval and of.loss_difference is not None and points == 3:
        assert of.loss_interval[0] <= of.loss_difference <= of.loss_interval[1]


@few
@given(
    noises, losses_of_ladders, st.lists(st.floats(-3, 3), min_size=3, max_size=3), st.floats(1e-10, 1e25),
    st.permutations(range(3)),
)  # fmt: skip
def test_what_the_runs_of_a_seed_share_the_unit_of_cost_and_the_order_of_arms_cancel(noise, loss, shifts, unit, order):
    def shifted(arm):
        losses = {seed: value + shifts[seed] for seed, value in arm.losses.items()}
        return dataclasses.replace(arm, cost=arm.cost * unit, losses=losses)

    def figures(found):
        of = found.multiplier
        values = (of.estimate, of.low, of.high, of.loss_difference, found.detectable)
        return [math.nan if value is None else value for value in values]

    own, curve = ladder(loss, 1.0, noise), arms(DOCUMENTED, noise)
    plain = judge([own], [curve])
    assume(plain.deviation > 1e-4 and all(abs(loss - measured) > 1e-4 for _, measured in DOCUMENTED))
    other = judge([shifted(own)], [[shifted(curve[i]) for i in order]])
    assert other.outcome == plain.outcome
    assert figures(other) == pytest.approx(figures(plain), rel=1e-4, abs=1e-7, nan_ok=True)


@few
@given(st.floats(0.1, 1.8), st.floats(0.3, 3.5))
def test_without_noise_the_true_multiplier_is_found(exponent, multiplier):
    true = law(exponent)
    found = judge([ladder(true(multiplier), noise=(0.0,))], [arms([(c, true(c)) for c in (0.25, 1.0, 4.0)], (0.0,))])
    assert found.multiplier.estimate == pytest.approx(multiplier, rel=1e-5)
    assert interval(found) == pytest.approx((multiplier, multiplier), rel=1e-2)


@given(st.floats(0.001, 0.999), st.floats(1.0, 200.0))
def test_t_quantiles_are_those_of_scipy(probability, degrees):
    expected = scipy.stats.t.ppf(probability, degrees)
    assert t_quantile(probability, degrees) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_arms_with_the_same_seeds_have_plain_means_and_two_way_residuals():
    losses = np.random.default_rng(0).normal(size=(1, 4, 3))
    design = Design([[0, 1, 2]] * 4)
    assert losses.reshape(1, -1) @ design.to_means.T == pytest.approx(losses.mean(axis=2))
    residuals = losses - losses.mean(axis=1, keepdims=True) - losses.mean(axis=2, keepdims=True) + losses.mean()
    assert design.degrees == 6
    assert design.variances(losses.reshape(1, -1)) == pytest.approx((residuals**2).sum() / 6)


def in_errors(design, losses, contrast):
    """A comparison of arms in each of many data sets: its differences, their standard errors, and its degrees."""
    noise = design.noise(contrast)
    errors = np.sqrt(contrast @ design.covariance(losses, noise) @ contrast)
    return losses @ design.to_means.T @ contrast, errors, noise.degrees


ALIKE = [[0, 1, 2]] * 4
SOME_MISSING = [[0, 1, 2], [0, 1], [0, 1, 2], [1, 2]]
MORE = [[0, 1, 2, 3, 4], [0, 1, 2]]
OTHERS = [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("seeds", "noisy", "shared", "least", "most"),
    [
        *((seeds, None, 0.0, 0.0, 0.06) for seeds in (ALIKE, SOME_MISSING, MORE, OTHERS)),
        *((seeds, None, 2.0, 0.0, 0.06) for seeds in (SOME_MISSING, MORE, OTHERS)),
        *(([list(range(num_seeds))] * 4, noisy, 0.0, 0.02, 0.065) for num_seeds in (2, 3, 5) for noisy in (0, 1)),
    ],
)
def test_a_test_at_95_percent_holds_if_an_arm_is_twice_as_noisy_or_seeds_are_missing(seeds, noisy, shared, least, most):
    """`shared`: the noise that all runs of a seed share. The test compares the first two arms."""
    rng = np.random.default_rng(0)
    of_seeds = shared * rng.normal(size=(20_000, 6))
    factors = [2 if arm == noisy else 1 for arm in range(len(seeds))]
    parts = [of_seeds[:, own] + k * rng.normal(size=(20_000, len(own))) for k, own in zip(factors, seeds, strict=True)]
    contrast = np.array([1.0, -1.0, *[0.0] * (len(seeds) - 2)])
    differences, errors, degrees = in_errors(Design(seeds), np.concatenate(parts, axis=1), contrast)
    assert least < (abs(differences) > t_quantile(0.975, degrees) * errors).mean() < most
    if noisy is None and not shared:
        assert (errors**2).mean() == pytest.approx(differences.var(), rel=0.04)


def test_two_arms_are_compared_as_pairs():
    """With nothing to pool, the test is the paired t test."""
    one, other = {0: 3.0, 1: 3.02, 2: 2.97}, {0: 3.05, 1: 3.04, 2: 3.03}
    found = judge([MeasuredArm("ladder", 1.0, one)], [[MeasuredArm("control", 1.0, other)]])
    expected = scipy.stats.ttest_rel(list(one.values()), list(other.values())).confidence_interval(0.95)
    assert found.multiplier.loss_interval == pytest.approx((expected.low, expected.high))
    assert found.degrees == pytest.approx(2)


def test_critical_values_of_the_best_of_several_hold_in_simulation():
    design = design_of(((0, 1, 2),) * 6)
    contrasts = np.array([[np.eye(6)[5] - np.eye(6)[i] for i in range(5)]])
    losses = np.random.default_rng(1).normal(size=(20_000, 18))
    parts = [in_errors(design, losses, row) for row in contrasts[0]]
    largest = np.max([differences / errors for differences, errors, _ in parts], axis=0)
    to_win, to_lose = critical_values(design, contrasts, 0, parts[0][2])
    assert (largest > to_win).mean() == pytest.approx(0.025, abs=0.005)
    assert to_lose == t_quantile(0.975, parts[0][2])


def test_a_win_takes_the_critical_value_of_the_curve_that_asks_for_most():
    """A curve with one noisy seed of its own is less correlated over the ladders than one that shares theirs."""
    design = design_of(((0, 1, 2),) * 5 + ((3, 4, 5),))
    shared, own = ([np.eye(6)[curve] - np.eye(6)[i] for i in range(4)] for curve in (4, 5))
    degrees = min(design.noise(row).degrees for row in (*shared, *own))
    one, other = (critical_values(design, np.array([rows]), 0, degrees)[0] for rows in (shared, own))
    assert abs(one - other) > 0.01
    for order in ([shared, own], [own, shared]):
        assert critical_values(design, np.array(order), 0, degrees)[0] == pytest.approx(max(one, other))
