"""Simulates how often the judge's intervals hold the truth and its verdicts are false, beside the method before it.

    python -m benchmarks.judge_coverage > benchmarks/results/judge_coverage.json    # half an hour
    python -m benchmarks.judge_coverage --draws 200

A cell invents a ladder and controls of one size, with the noise of seeds, as often as `--draws` says. The controls'
true losses follow a curve through those of the documented example at half and at twice the ladder's cost; the ladder's
is the curve's at the true multiplier of its cost. A row of the results has the worst of its cells.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import options, print_results
from growctl.analysis.statistics import Duel, critical_values, design_of, t_quantile

Floats = NDArray[np.float64]
Shape = Callable[[Floats], Floats]

DOCUMENTED = {0.5: 3.3688, 2.0: 2.6661}
"""Losses from scratch, in nats, by multiples of a ladder's FLOPs (docs/reading-the-report.md)."""

LAWS: dict[str, Shape] = {f"exponent {a}": lambda cost, a=a: cost**-a for a in (0.3, 0.9, 1.0)}  # type: ignore[misc]
NO_LAW: dict[str, Shape] = {"two laws added": lambda cost: cost**-0.2 + 0.5 * cost**-1.5}
BUDGETS = ((0.5, 1.0, 2.0), (0.25, 1.0, 4.0))
MULTIPLIERS = (0.8, 1.0, 1.2, 1.6)
DEVIATIONS = (0.005, 0.01, 0.02, 0.04)
SEEDS = (2, 3, 5)

NOISES: dict[str, tuple[float, float, float, float]] = {
    "equal": (1.0, 1.0, 1.0, 0.0),
    "equal, and twice as much shared by the runs of a seed": (1.0, 1.0, 1.0, 2.0),
    "twice as much in the ladder": (1.0, 0.5, 0.5, 0.0),
    "twice as much in the controls": (0.5, 1.0, 1.0, 0.0),
    "twice as much in the middle control": (0.5, 0.5, 1.0, 0.0),
}
"""In multiples of a cell's deviation: of the ladder, the controls, the middle control, and what a seed shares."""

SELECTIONS = ((3, 1), (1, 10), (3, 10))
"""Sizes from scratch and policies of which the best is chosen."""
VERDICT_DEVIATION = 0.02


def losses_at(shape: Shape, costs: Sequence[float] | Floats) -> Floats:
    """The true losses at some costs, on the curve of that shape through the documented losses."""
    (cheap, high), (dear, low) = DOCUMENTED.items()
    ends = shape(np.array([cheap, dear]))
    return low + (shape(np.asarray(costs)) - ends[1]) / (ends[0] - ends[1]) * (high - low)


def drawn(
    rng: np.random.Generator, num_draws: int, truth: Floats, own: Sequence[float], shared: float, num_seeds: int
) -> Floats:
    """Losses by draw, arm and seed."""
    losses = truth[:, None] + np.array(own)[:, None] * rng.normal(size=(num_draws, len(truth), num_seeds))
    return np.asarray(losses + shared * rng.normal(size=(num_draws, 1, num_seeds)))


def cell(
    rng: np.random.Generator, num_draws: int, num_seeds: int, noise: str,
    shape: Shape, budgets: Sequence[float], multiplier: float, deviation: float,
) -> dict[str, float]:  # fmt: skip
    """Coverage, width and bias in one cell."""
    ladder_noise, control_noise, middle_noise, shared = (deviation * part for part in NOISES[noise])
    num_points, target, x = len(budgets), math.log(multiplier), np.log(budgets)
    own = [control_noise] * num_points + [ladder_noise]
    own[num_points // 2] = middle_noise
    truth = losses_at(shape, [*budgets, multiplier])
    losses = drawn(rng, num_draws, truth, own, shared, num_seeds)
    design = design_of((tuple(range(num_seeds)),) * (num_points + 1))
    duel = Duel(design, losses.reshape(num_draws, -1), [*budgets, 1.0], range(num_points), num_points)
    critical = t_quantile(0.975, duel.noise.degrees)
    found = duel.test(critical, critical)
    estimates = duel.estimates[~np.isnan(duel.estimates)]
    ladder, reaches = losses[:, -1], {"oracle": t_quantile(0.975, num_seeds - 1) * losses[:, -1].std(1, ddof=1)}
    reaches["knowing_oracle"] = np.full(num_draws, 1.96 * math.hypot(ladder_noise, shared))
    low, high = old_interval(x, losses[:, None, :-1], ladder)
    is_known = ~np.isnan(low)
    return {
        "coverage": _share((found.low <= target) & (target <= found.high)),
        **{f"width_to_{name}": _width(x, found.low, found.high) / _width(x, *ends) for name, reach in reaches.items()
           for ends in [_oracle(shape, ladder.mean(1), reach / math.sqrt(num_seeds))]},
        "bias": math.exp(float(estimates.mean()) - target),
        "bracketed": len(estimates) / num_draws,
        "old_coverage": _share(((low <= target) & (target <= high))[is_known]),
    }  # fmt: skip


def _oracle(shape: Shape, losses: Floats, reach: Floats) -> tuple[Floats, Floats]:
    """The interval, in log cost, of somebody who knows the curve, and the ladder's loss to within `reach`."""
    grid = np.linspace(-5, 5, 2001)
    on_curve = losses_at(shape, np.exp(grid))[::-1]
    low, high = (np.interp(losses + sign * reach, on_curve, grid[::-1]) for sign in (1, -1))
    return low, high


def _width(x: Floats, low: Floats, high: Floats) -> float:
    """The median width of intervals, as far as they lie between the measured costs."""
    return float(np.median(np.clip(high, x[0], x[-1]) - np.clip(low, x[0], x[-1])))


def false_verdicts(
    rng: np.random.Generator, num_draws: int, num_seeds: int, noise: str, num_sizes: int, num_policies: int
) -> dict[str, float]:
    """How often the best of policies that save nothing is said to have won, or to have lost, against the best size."""
    budgets, shape = BUDGETS[0], LAWS["exponent 0.9"]
    ladder_noise, control_noise, middle_noise, shared = (VERDICT_DEVIATION * part for part in NOISES[noise])
    truth = np.concatenate([losses_at(shape, [1.0] * num_policies), *[losses_at(shape, budgets)] * num_sizes])
    own = [ladder_noise] * num_policies + [control_noise, middle_noise, control_noise] * num_sizes
    losses = drawn(rng, num_draws, truth, own, shared, num_seeds)
    order = np.argsort(losses[:, :num_policies].mean(2), axis=1)  # the best policy first; they are all alike
    losses[:, :num_policies] = np.take_along_axis(losses[:, :num_policies], order[:, :, None], 1)
    design = design_of((tuple(range(num_seeds)),) * len(truth))
    costs = [1.0] * num_policies + [*budgets] * num_sizes
    points = [range(start, start + 3) for start in range(num_policies, len(truth), 3)]
    duels = [Duel(design, losses.reshape(num_draws, -1), costs, of_size, 0) for of_size in points]
    contrasts = np.array([duel.contrasts(range(num_policies), 0) for duel in duels])
    critical = critical_values(design, contrasts, 0, min(duel.noise.degrees for duel in duels))
    found = [duel.test(*critical) for duel in duels]
    controls = losses[:, num_policies:].reshape(num_draws, num_sizes, 3, num_seeds)
    low, high = old_interval(np.log(budgets), controls, losses[:, 0])
    least, most = old_difference(controls, losses[:, 0])
    return {
        "false_won": _share(np.all([one.won for one in found], axis=0)),
        "false_lost": _share(np.any([one.lost for one in found], axis=0)),
        "old_false_won": _share(np.where(np.isnan(low), most < 0, low > 0)),
        "old_false_lost": _share(np.where(np.isnan(low), least > 0, high < 0)),
    }


def old_interval(x: Floats, controls: Floats, ladder: Floats) -> tuple[Floats, Floats]:
    """The interval of the method before the judge: the ends' logs, NaN where some draw of the seeds has no bracket.

    It joined a bootstrap over the seeds with the t interval of the seeds' own multipliers, all read off the lower
    envelope of chords in log cost. `controls`: draws x sizes x budgets x seeds. `ladder`: draws x seeds.
    """
    num_seeds = ladder.shape[1]
    picks = itertools.combinations_with_replacement(range(num_seeds), num_seeds)
    counts = np.array([np.bincount(pick, minlength=num_seeds) for pick in picks])
    chances = np.array([1 / math.prod(map(math.factorial, row)) for row in counts.tolist()])
    resampled = _on_chords(x, controls @ counts.T / num_seeds, ladder @ counts.T / num_seeds)
    order = np.argsort(resampled, axis=1)
    cumulated = np.cumsum((chances / chances.sum())[order], axis=1)
    ends = [(cumulated >= tail).argmax(axis=1) for tail in (0.025, 0.975)]
    low, high = (np.take_along_axis(np.sort(resampled, axis=1), end[:, None], 1)[:, 0] for end in ends)
    by_seed = _on_chords(x, controls, ladder)
    reach = t_quantile(0.975, num_seeds - 1) * by_seed.std(1, ddof=1) / math.sqrt(num_seeds)
    has_all = ~np.isnan(resampled).any(axis=1)
    return (
        np.where(has_all, np.minimum(low, by_seed.mean(1) - reach), np.nan),
        np.where(has_all, np.maximum(high, by_seed.mean(1) + reach), np.nan),
    )


def _on_chords(x: Floats, controls: Floats, ladder: Floats) -> Floats:
    """Where the lower envelope of the sizes' losses (draws x sizes x budgets x resamples) reaches the ladder's."""
    losses = controls.min(axis=1)
    found = np.full(ladder.shape, np.inf)
    for i, j in itertools.combinations(range(len(x)), 2):  # the envelope is below all other chords
        brackets = (losses[:, i] > ladder) & (losses[:, j] <= ladder)
        share = (losses[:, i] - ladder) / np.where(brackets, losses[:, i] - losses[:, j], 1.0)
        found = np.where(brackets, np.minimum(found, x[i] + share * (x[j] - x[i])), found)
    return np.where((losses[:, 0] > ladder) & np.isfinite(found), found, np.nan)


def old_difference(controls: Floats, ladder: Floats) -> tuple[Floats, Floats]:
    """The interval, before the judge, of ladder minus the best control of at most its cost, over pairs of seeds."""
    affordable = controls[:, :, :2].reshape(len(ladder), -1, ladder.shape[1])
    pairs = ladder - affordable[np.arange(len(ladder)), affordable.mean(2).argmin(1)]
    reach = t_quantile(0.975, ladder.shape[1] - 1) * pairs.std(1, ddof=1) / math.sqrt(ladder.shape[1])
    return pairs.mean(1) - reach, pairs.mean(1) + reach


def _share(values: NDArray[np.bool_]) -> float:
    return float(np.mean(values)) if len(values) else math.nan


def coverage_row(
    rng: np.random.Generator, num_draws: int, num_seeds: int, noise: str,
    shapes: dict[str, Shape], budgets: Sequence[Sequence[float]],
) -> dict[str, Any]:  # fmt: skip
    """The worst of the cells with these shapes and budgets, every multiplier and every deviation."""
    cells = [
        cell(rng, num_draws, num_seeds, noise, *parts)
        for parts in itertools.product(shapes.values(), budgets, MULTIPLIERS, DEVIATIONS)
    ]
    by_name = {name: np.array([one[name] for one in cells]) for name in cells[0]}
    return {
        "curve": "; ".join(shapes),
        "budgets": budgets,
        "noise": noise,
        "seeds": num_seeds,
        "cells": len(cells),
        "mean_coverage": float(by_name["coverage"].mean()),
        "coverage": float(by_name["coverage"].min()),
        "width_to_oracle": float(by_name["width_to_oracle"].max()),
        "width_to_knowing_oracle": float(by_name["width_to_knowing_oracle"].max()),
        "bias": float(by_name["bias"][abs(np.log(by_name["bias"])).argmax()]),
        "bracketed": float(by_name["bracketed"].min()),
        "old_mean_coverage": float(np.nanmean(by_name["old_coverage"])),
        "old_coverage": float(np.nanmin(by_name["old_coverage"])),
    }


def main() -> None:
    """Simulates every row and prints one JSON document."""
    parser = options(__doc__)
    parser.add_argument("--draws", type=int, default=4000, help="in each cell")
    arguments = parser.parse_args()
    rng, num_draws = np.random.default_rng(0), arguments.draws
    curves = [(noise, LAWS, BUDGETS) for noise in NOISES]
    curves += [("equal", LAWS, ((0.5, 2.0),)), ("equal", NO_LAW, ((0.25, 0.5, 1.0, 2.0, 4.0),))]  # type: ignore[list-item]
    coverage = [coverage_row(rng, num_draws, seeds, *curve) for curve in curves for seeds in SEEDS]
    verdicts = [
        {"sizes": sizes, "policies": policies, "seeds": seeds, "noise": noise}
        | false_verdicts(rng, num_draws, seeds, noise, sizes, policies)
        for (sizes, policies), seeds, noise in itertools.product(SELECTIONS, SEEDS, NOISES)
    ]
    print_results(arguments.note, "numpy", draws=num_draws, coverage=coverage, verdicts=verdicts)


if __name__ == "__main__":
    main()
