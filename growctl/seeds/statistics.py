"""Statistics over seeds: means, intervals, differences of two groups of runs, and savings.

Pure functions of final losses in nats, {seed: loss}. Intervals are two-sided, 95 % unless another confidence is given.

A t interval holds if the losses of seeds are about normal, also for two seeds, where it is honestly wide. Savings are
ratios of FLOPs read off a curve, which nothing makes normal, so they get a bootstrap.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 10_000
"""More would change the ends of a bootstrap interval by less than their own meaning."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_HALVINGS = 60


@dataclass(frozen=True)
class Interval:
    """A confidence interval, from `low` to `high`."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Group:
    """The final losses of runs that differ in nothing but their seed."""

    by_seed: dict[int, float]
    """Nats per token, in the order of the seeds."""
    mean: float
    deviation: float | None
    """The sample standard deviation; None for one seed."""
    interval: Interval | None
    """The t interval of the mean; None for one seed, which says nothing about the noise."""


@dataclass(frozen=True)
class Difference:
    """The mean loss of one group minus that of another."""

    mean: float
    """Nats per token; negative if the first group is better."""
    interval: Interval | None
    """None if the noise cannot be told: from one pair of seeds, or from a group of one seed."""
    method: Literal["paired", "welch"]
    """paired: over the differences at seeds that both groups have. welch: the groups have no two seeds in common."""
    seeds: tuple[int, ...]
    """The seeds of the pairs; empty for `welch`."""

    @property
    def within_noise(self) -> bool | None:
        """Whether the interval holds 0, so that seeds alone may explain the difference; None without an interval."""
        return None if self.interval is None else 0.0 in self.interval


def group(losses: Mapping[int, float], confidence: float = CONFIDENCE) -> Group:
    """The mean of final losses by seed, with its t interval. Raises ValueError for no losses or one not finite."""
    _check(losses)
    by_seed = dict(sorted(losses.items()))
    values = list(by_seed.values())
    deviation = stdev(values) if len(values) > 1 else None
    return Group(by_seed, fmean(values), deviation, mean_interval(values, confidence))


def difference(first: Mapping[int, float], second: Mapping[int, float], confidence: float = CONFIDENCE) -> Difference:
    """The mean of `first` minus that of `second`, both losses by seed, with its interval.

    Two seeds or more in common are compared pair by pair, and the other seeds do not count: the same seed gives both
    the same data in the same order, so that what they share cancels out. Otherwise Welch's t interval, which
    lets the groups be noisy to different degrees. Raises ValueError for no losses or one that is not finite.
    """
    _check(first)
    _check(second)
    common = sorted(first.keys() & second.keys())
    if len(common) > 1 or first.keys() == second.keys():
        pairs = [first[seed] - second[seed] for seed in common]
        return Difference(fmean(pairs), mean_interval(pairs, confidence), "paired", tuple(common))
    return _welch(list(first.values()), list(second.values()), confidence)


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """The t interval of the mean of `values`; None for a single one."""
    if len(values) < 2:
        return None
    return _around(fmean(values), stdev(values) / math.sqrt(len(values)), len(values) - 1, confidence)


def bootstrap(
    seeds: Sequence[int],
    statistic: Callable[[Sequence[int]], float | None],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    generator_seed: int = 0,
) -> Interval | None:
    """The percentile interval of `statistic`, such as a saving, over resamples of the seeds.

    It lies within the range that draws of these seeds give, so with three or four seeds it is rather too narrow.

    `statistic` gets as many seeds as there are, drawn with replacement, so that everything that one seed trained, the
    ladder and its controls, is drawn together. It is computed once for each different draw. The same arguments give
    the same interval. None for one seed, and if `statistic` has no value (None) for any draw: the value then rests on
    some of the seeds, and its ends are unknown.
    """
    drawn = sorted(set(seeds))
    if len(drawn) < 2:
        return None
    generator = np.random.default_rng(generator_seed)
    picks = np.sort(generator.integers(len(drawn), size=(resamples, len(drawn))), axis=1)
    different, counts = np.unique(picks, axis=0, return_counts=True)
    values = [statistic([drawn[index] for index in pick]) for pick in different]
    known = [value for value in values if value is not None and math.isfinite(value)]
    if len(known) < len(values):
        return None
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(np.repeat(known, counts), [tail, 1.0 - tail])
    return Interval(float(low), float(high))


def t_quantile(probability: float, degrees: float) -> float:
    """The value that Student's t with `degrees` >= 1 of freedom stays below with `probability`.

    With t = sqrt(degrees) tan(angle), the density of the angle is proportional to cos(angle) ** (degrees - 1), which is
    smooth, so that 64 Gauss-Legendre nodes give its integral; halving then finds the angle. numpy has no t
    distribution, and scipy would be a large dependency for this one function. The tests compare it with scipy's: it has
    seven figures or more.
    """
    if not 0.0 < probability < 1.0 or not 1.0 <= degrees < math.inf:
        raise ValueError(f"t_quantile({probability}, {degrees}): needs 0 < probability < 1 and degrees >= 1")
    wanted = abs(probability - 0.5)
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_up_to(middle, degrees) < wanted else (low, middle)
    value = math.sqrt(degrees) * math.tan((low + high) / 2)
    return math.copysign(value, probability - 0.5)


def _share_up_to(angle: float, degrees: float) -> float:
    """The probability that a t is between 0 and sqrt(degrees) tan(`angle`)."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    heights = np.cos(angle * (_NODES + 1) / 2) ** (degrees - 1)
    return scale * angle / 2 * float(_WEIGHTS @ heights)


def _welch(first: Sequence[float], second: Sequence[float], confidence: float) -> Difference:
    """The difference of two independent means, with the degrees of freedom of Welch and Satterthwaite."""
    mean = fmean(first) - fmean(second)
    if len(first) < 2 or len(second) < 2:
        return Difference(mean, None, "welch", ())
    parts = [(stdev(values) ** 2 / len(values), len(values) - 1) for values in (first, second)]
    variance = sum(part for part, _ in parts)
    if variance == 0.0:
        return Difference(mean, Interval(mean, mean), "welch", ())
    degrees = 1.0 / sum((part / variance) ** 2 / freedom for part, freedom in parts)
    return Difference(mean, _around(mean, math.sqrt(variance), degrees, confidence), "welch", ())


def _around(mean: float, error: float, degrees: float, confidence: float) -> Interval:
    reach = error * t_quantile((1.0 + confidence) / 2.0, degrees) if error else 0.0
    return Interval(mean - reach, mean + reach)


def _check(losses: Mapping[int, float]) -> None:
    """Raises ValueError for no losses, or one that is not finite: a run that diverged has no final loss."""
    if not losses:
        raise ValueError("there are no losses")
    for seed, loss in losses.items():
        if not math.isfinite(loss):
            raise ValueError(f"the loss of seed {seed} is {loss}; leave runs that diverged out, and say so")
