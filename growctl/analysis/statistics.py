"""What a curve of finished models costs at a loss, and whether a ladder beats the best of several curves.

Pure functions of costs (in any currency) and final losses in nats per token. docs/judge.md explains the method, and
shows by simulation (benchmarks/judge_coverage.py) how often its intervals and verdicts hold.

Costs are logs inside. Shapes: D data sets (1, but many in the simulation), K points of a curve, G costs, A arms,
S seeds, N losses.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from growctl.analysis.curve import EQUAL_COST, STEEPEST, Curve, Floats, Kind, distinct

Outcome = Literal["won", "lost", "within the noise", "unknown"]

CONFIDENCE = 0.95  # of intervals, and of the outcomes that they never contradict
POWER = 0.8  # how often seeds show an effect as large as the detectable one

_STEPS = 32  # costs in each segment of a curve at which the test is inverted, with a straight line between
_SIMULATIONS = 10_000
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


@dataclass(frozen=True)
class MeasuredArm:
    """Runs that are alike in all but the seed."""

    name: str
    cost: float  # the mean over the seeds, in any currency; above 0
    losses: Mapping[int, float]  # the final loss by seed, in nats per token; finite


@dataclass(frozen=True)
class Multiplier:
    """The cost that the best curve needs for the ladder's loss / the ladder's cost."""

    estimate: float | None  # None if no two measured models bracket the ladder's loss
    low: float | None
    high: float | None
    """None: open, because nothing cheaper or dearer was measured. Both None: perhaps the noise is not known."""
    kind: Kind
    """chord: the cost is at most this. not reached: no model ended as low. not bracketed: all ended lower."""
    loss_difference: float | None
    """Ladder minus curve at the ladder's cost, in nats per token; None if that cost is outside all measured ones."""
    loss_interval: tuple[float, float] | None


@dataclass(frozen=True)
class Test:
    """Whether a ladder beats the best of several curves."""

    outcome: Outcome
    multiplier: Multiplier
    curve: int | None  # the one that needs the least for the ladder's loss; None without curves
    seeds: tuple[int, ...]  # the ladder's
    detectable: float | None = None
    """The smallest loss difference that such seeds show four times in five; None if not known."""
    critical: tuple[float, float] = (math.nan, math.nan)  # how many standard errors it takes to win, and to lose
    degrees: float = 0.0  # of freedom of the standard error; 0 if the noise is not known, as with one seed
    deviation: float = math.nan  # of a loss between seeds, less what all runs of a seed share


def cost_at_loss(points: Sequence[tuple[float, float]], loss: float) -> tuple[float | None, Kind]:
    """The cost at which the curve through `points`, pairs of cost and loss, reaches `loss`, or None; and how it is
    known. Never extrapolates."""
    kept = [points[i] for i in distinct(points)]
    if not kept:
        return None, "no curve"
    curve = Curve(np.log([cost for cost, _ in kept]), np.array([[mean for _, mean in kept]]))
    [log_cost], [kind] = curve.costs_at(np.array([loss]))
    return _exp(log_cost), kind


def judge(ladders: Sequence[MeasuredArm], curves: Sequence[Sequence[MeasuredArm]], which: int = 0) -> Test:
    """Compares `ladders[which]`, chosen as the best of `ladders`, with the best of `curves`.

    Won: at the ladder's cost every curve lies above the ladder's loss, by more than the noise between seeds and the
    choice of the best of `ladders` explain. Lost: some curve lies below, by more than the noise and the choice of the
    best of `curves` explain. The multiplier's interval holds the multipliers that the same test does not reject, so
    that it never contradicts the outcome. An empty curve is a size that was not measured: nothing wins against it.
    """
    arms, points = list(ladders), dict[int, range]()
    for k in sorted(range(len(curves)), key=lambda k: sorted(map(_order, curves[k]))):  # the simulation has an order
        kept = distinct([(arm.cost, math.fsum(arm.losses.values()) / len(arm.losses)) for arm in curves[k]])
        points[k] = range(len(arms), len(arms) + len(kept))
        arms += [curves[k][i] for i in kept]
    design = design_of(tuple(tuple(sorted(arm.losses)) for arm in arms))
    losses = np.array([[arm.losses[seed] for arm in arms for seed in sorted(arm.losses)]])
    costs, seeds = [arm.cost for arm in arms], tuple(sorted(ladders[which].losses))
    duels = {k: Duel(design, losses, costs, own, which) for k, own in points.items() if own}
    if not duels:
        return Test("unknown", Multiplier(None, None, None, "no curve", None, None), None, seeds)
    best = min(duels, key=lambda k: duels[k].need)
    kind, estimate = duels[best].kinds[0], _exp(duels[best].estimates[0])
    equal, is_complete = [duel for duel in duels.values() if duel.covers], len(duels) == len(curves)
    difference = max((float(duel.own[0] - duel.at_ladder[0]) for duel in equal), default=None)
    degrees = min(duel.noise.degrees for duel in duels.values())
    if min(len(seeds), max(len(arm.losses) for arm in arms[len(ladders) :])) < 2 or not degrees:
        return Test("unknown", Multiplier(estimate, None, None, kind, difference, None), best, seeds)
    contrasts = np.array([duel.contrasts(range(len(ladders)), which) for duel in duels.values()])
    critical = critical_values(design, contrasts, which, degrees)
    found = {k: duel.test(*critical) for k, duel in duels.items()}
    outcome: Outcome = "unknown"
    if any(one.lost[0] for one in found.values()):
        outcome = "lost"
    elif is_complete and all(one.won[0] for one in found.values()):
        outcome = "won"
    elif any(duel.covers and not found[k].won[0] for k, duel in duels.items()):
        outcome = "within the noise"
    low = min(one.low[0] for one in found.values()) if is_complete else -math.inf
    high = min(one.high[0] for one in found.values())
    if estimate is not None:  # the ends are interpolated
        low, high = min(low, math.log(estimate)), max(high, math.log(estimate))
    interval, detectable = None, None
    if equal:
        ends = np.array([found[k].difference[:, 0] for k, duel in duels.items() if duel.covers]).max(axis=0)
        interval = float(ends[0]), float(ends[1])
    if duels[best].covers:
        detectable = float((critical[0] + t_quantile(POWER, degrees)) * duels[best].error_at_ladder[0])
    multiplier = Multiplier(estimate, _exp(low), _exp(high), kind, difference, interval)
    deviation = math.sqrt(design.variances(losses)[0])
    return Test(outcome, multiplier, best, seeds, detectable, critical, degrees, deviation)


def _order(arm: MeasuredArm) -> tuple[float, list[tuple[int, float]]]:
    return arm.cost, sorted(arm.losses.items())


class Noise(NamedTuple):
    """The variance of a contrast: `pooled` * that of equally noisy runs + `own` * the sum of its squares by seed."""

    pooled: float
    own: float
    degrees: float  # of freedom (Satterthwaite); 0 if nothing tells the noise


class Design:
    """Which seeds each of A arms has, and so how noisy the arms' means are.

    A loss is its arm's mean, plus what all runs of its seed share (the same data in the same order), plus noise. Where
    all arms have the same seeds, what a seed shares cancels and counts as no noise.
    """

    def __init__(self, seeds: Sequence[Sequence[int]]):
        arm = np.repeat(np.arange(len(seeds)), [len(own) for own in seeds])
        seed = np.concatenate([np.array(own) for own in seeds])
        self._of_seeds = [seed == one for one in np.unique(seed)]
        effects = np.array([arm == one for one in range(len(seeds))], dtype=float)
        self.to_means = effects / effects.sum(axis=1, keepdims=True)  # A x N
        if all(tuple(own) == tuple(seeds[0]) for own in seeds):
            effects = np.concatenate([effects, self._of_seeds])
        self._to_residuals = np.eye(len(arm)) - np.linalg.pinv(effects) @ effects  # N x N
        self.degrees = round(float(np.trace(self._to_residuals)))

    def variances(self, losses: Floats) -> Floats:
        """The variance of the noise of one loss, pooled over all arms, in each of D data sets (D x N)."""
        return ((losses @ self._to_residuals) ** 2).sum(axis=1) / max(self.degrees, 1)

    def by_seed(self, losses: Floats) -> Floats:
        """What each seed's noise adds to the arms' means: D x S x A."""
        residuals = losses @ self._to_residuals
        return np.stack([residuals[:, own] @ self.to_means[:, own].T for own in self._of_seeds], axis=1)

    def noise(self, contrast: Floats) -> Noise:
        """How the variance of a contrast of the arms' means (A) is estimated.

        Its own scatter over n seeds has n - 1 degrees of freedom, and is right however noisy each arm is. The noise of
        all arms counts beside it as half a degree, which keeps two or three seeds from saying next to nothing.
        """
        weights = contrast @ self.to_means
        parts = weights * np.array(self._of_seeds) @ self._to_residuals
        variance, own = float(weights @ weights), float((parts**2).sum())
        num_seeds = int(((parts**2).sum(axis=1) > 1e-12 * variance).sum())
        if not self.degrees or num_seeds < 2:
            return Noise(1.0, 0.0, self.degrees)
        share = (num_seeds - 1) / (num_seeds - 0.5)
        squares = (1 - share**2) / self.degrees + (share / own) ** 2 * float(((parts @ parts.T) ** 2).sum())
        return Noise(1 - share, share * variance / own, 1 / squares)

    def covariance(self, losses: Floats, noise: Noise) -> Floats:
        """The covariance of the arms' means in each of D data sets: D x A x A."""
        equal = noise.pooled * self.variances(losses)[:, None, None] * (self.to_means @ self.to_means.T)
        by_seed = self.by_seed(losses)
        return equal + noise.own * by_seed.transpose(0, 2, 1) @ by_seed

    @cached_property
    def _simulated(self) -> tuple[Floats, Floats, Floats]:
        losses = np.random.default_rng(0).standard_normal((_SIMULATIONS, len(self._to_residuals)))
        return losses @ self.to_means.T, self.by_seed(losses), self.variances(losses)

    def simulate(self, contrasts: Floats) -> Floats:
        """J contrasts (J x A) in standard errors, in simulations in which they are 0 and all losses equally noisy."""
        means, by_seed, variances = self._simulated
        pooled, own, _ = np.array([self.noise(contrast) for contrast in contrasts]).T
        equal = variances[:, None] * ((contrasts @ self.to_means) ** 2).sum(axis=1)
        return means @ contrasts.T / np.sqrt(pooled * equal + own * ((by_seed @ contrasts.T) ** 2).sum(axis=1))


@lru_cache(maxsize=8)
def design_of(seeds: tuple[tuple[int, ...], ...]) -> Design:
    """The design of arms with these seeds, kept with its simulations."""
    return Design(seeds)


class Found(NamedTuple):
    """What a test says of D data sets."""

    low: Floats  # logs of the ends of the multiplier's interval; infinite where open
    high: Floats
    won: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    difference: Floats  # 2 x D: the interval of ladder minus curve at the ladder's cost, in nats


class Duel:
    """A ladder against one curve, in D data sets. Costs are multiples of the ladder's."""

    def __init__(self, design: Design, losses: Floats, costs: Sequence[float], points: Sequence[int], ladder: int):
        """`losses`: D x N. `costs`: of the A arms. `points`: the curve's arms, by cost."""
        means = losses @ design.to_means.T
        self._log_costs, self._points = np.log(costs), list(points)
        self.own, self._measured = means[:, ladder], means[:, self._points]
        self.x = self._log_costs[self._points] - self._log_costs[ladder]
        nearest = abs(self.x).argmin()
        if not self.x[0] <= 0 <= self.x[-1] and abs(self.x[nearest]) <= math.log1p(EQUAL_COST):
            self.x[nearest] = 0.0
        self.covers = bool(self.x[0] <= 0 <= self.x[-1])
        self.curve = Curve(self.x, self._measured)
        self.estimates, self.kinds = self.curve.costs_at(self.own)
        self.noise = design.noise(self.contrasts([ladder], ladder)[0])
        sides = np.array([*self._points, ladder])
        covariance = design.covariance(losses, self.noise)[:, sides[:, None], sides]
        steps = [np.linspace(*segment, _STEPS) for segment in pairwise(self.x)]
        self._grid = np.unique(np.concatenate([self.x, [0.0] * self.covers, *steps]))
        self._equal = int(abs(self._grid).argmin())
        self._high, self._low = (
            self._with_errors(curve, covariance) for curve in (self.curve, Curve(self.x, self._measured, STEEPEST))
        )
        self.at_ladder, self.error_at_ladder = (part[:, self._equal] for part in self._high)

    @property
    def need(self) -> tuple[bool, float]:
        """Sorts curves by what they need for the ladder's loss in the first data set; those that end above it last."""
        ends = {"not reached": (True, self.x[-1]), "not bracketed": (False, self.x[0])}
        return ends.get(self.kinds[0], (False, self.estimates[0]))

    def contrasts(self, ladders: Sequence[int], own: int) -> Floats:
        """Curve minus ladder at each ladder's cost in the first data set, as weights of the arms' means: J x A."""
        rows, columns = np.arange(len(ladders)), np.array(ladders)
        contrasts = np.zeros((len(rows), len(self._log_costs)))
        first = Curve(self.x, self._measured[:1])
        contrasts[:, self._points] = first.weights(self._log_costs[columns] - self._log_costs[own])[0]
        contrasts[rows, columns] = -1.0
        return contrasts

    def _with_errors(self, curve: Curve, covariance: Floats) -> tuple[Floats, Floats]:
        """The losses of the curves, and the standard errors of their differences from the ladder's, D x G each."""
        contrasts = np.pad(curve.weights(self._grid), ((0, 0), (0, 0), (0, 1)), constant_values=-1.0)
        errors = np.sqrt(np.maximum((contrasts @ covariance * contrasts).sum(axis=2), 0.0))
        return curve.at(self._grid), errors

    def test(self, critical_to_win: float, critical_to_lose: float) -> Found:
        """The multipliers at which curve and ladder differ by no more standard errors than the critical values.

        A chord lies above every power law through its ends. So a multiplier counts as too small only if the steepest
        law says so, and nobody wins because two points leave the law open.
        """
        x, grid = self.x, self._grid
        too_small = self._low[0] - self.own[:, None] - critical_to_win * self._low[1]
        too_large = self.own[:, None] - self._high[0] - critical_to_lose * self._high[1]
        return Found(
            low=_first_kept(grid, too_small),
            high=-_first_kept(-grid[::-1], too_large[:, ::-1]),
            won=(x[-1] >= 0) & (too_small[:, grid <= max(0.0, x[0])] > 0).all(axis=1),
            lost=(x[0] <= 0) & (too_large[:, grid >= min(0.0, x[-1])] > 0).all(axis=1),
            difference=np.stack([too_large[:, self._equal], -too_small[:, self._equal]]),
        )


def _first_kept(x: Floats, excess: Floats) -> Floats:
    """Where `excess` (D x G) first falls to 0: -inf if it starts there, the last x if it never does."""
    first = np.where((excess <= 0).any(axis=1), (excess <= 0).argmax(axis=1), len(x))
    after = np.clip(first, min(1, len(x) - 1), len(x) - 1)
    before = np.maximum(after - 1, 0)
    above, below = (np.take_along_axis(excess, i[:, None], 1)[:, 0] for i in (before, after))
    crossing = x[before] + above / np.where(above > below, above - below, 1.0) * (x[after] - x[before])
    return np.where(first == 0, -np.inf, np.where(first == len(x), x[-1], crossing))


def critical_values(design: Design, contrasts: Floats, which: int, degrees: float) -> tuple[float, float]:
    """How many standard errors it takes to win against every curve, and to lose against some curve.

    `contrasts`: of each curve with each ladder (curves x ladders x A). A simulation finds how far chance alone takes
    the best of several ladders, or of several curves.
    """
    quantile = (1 + CONFIDENCE) / 2
    alone = t_quantile(quantile, degrees)

    def of_best(rows: Floats) -> float:
        if len(rows) == 1:
            return alone
        simulated = design.simulate(rows)
        largest = np.concatenate([simulated.max(axis=1), -simulated.min(axis=1)])
        return max(alone, float(np.quantile(largest, quantile)))

    return max(of_best(rows) for rows in contrasts), of_best(contrasts[:, which])


def t_quantile(probability: float, degrees: float) -> float:
    """The value that Student's t with `degrees` >= 1 of freedom stays below with `probability`; numpy has none.

    With t = sqrt(degrees) tan(angle), the density of the angle is proportional to cos(angle) ** (degrees - 1), which is
    smooth: 64 Gauss-Legendre nodes give its integral, halving finds the angle.
    """
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        inside = scale * middle / 2 * float(_WEIGHTS @ np.cos(middle * (_NODES + 1) / 2) ** (degrees - 1))
        low, high = (middle, high) if inside < abs(probability - 0.5) else (low, middle)
    return math.copysign(math.sqrt(degrees) * math.tan((low + high) / 2), probability - 0.5)


def _exp(log_cost: float) -> float | None:
    return math.exp(log_cost) if math.isfinite(log_cost) else None
