"""What a curve of finished models costs at a loss, and whether a ladder beats the best of several curves.

Pure functions of costs (in any currency) and final losses in nats per token. docs/judge.md explains the method, and
shows by simulation (benchmarks/judge_coverage.py) how often its intervals and verdicts hold.

Shapes: D data sets (1, except in the simulation), K points of a curve, G costs, A arms, S seeds, N losses.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Kind = Literal["power law", "chord", "not reached", "not bracketed", "no curve"]
Outcome = Literal["won", "lost", "within the noise", "unknown"]

EQUAL_COST = 0.02
"""Controls whose costs differ by at most this share cost the same; so do a ladder and the control nearest to it."""

STEEPEST = 2.0
"""The largest exponent of a power law that the judge believes. Measured ones are between 0.05 and 1."""

POWER = 0.8
"""How often the seeds would show an effect as large as the detectable one."""

_FLATTEST = 1e-3  # with a smaller exponent, a power law is a straight line in log cost to four digits
_STEPS = 32  # costs in each segment of a curve at which the test is inverted, with a straight line between
_SIMULATIONS = 10_000
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


@dataclass(frozen=True)
class Arm:
    """Runs that are alike in all but the seed."""

    name: str
    cost: float
    """The mean over the seeds, in any currency; above 0."""
    losses: Mapping[int, float]
    """The final loss by seed, in nats per token; finite."""

    def __post_init__(self) -> None:
        if not 0 < self.cost < math.inf:
            raise ValueError(f"{self.name} costs {self.cost}: a cost must be finite and above 0")
        if not self.losses:
            raise ValueError(f"{self.name} has no losses")
        for seed, loss in self.losses.items():
            if not math.isfinite(loss):
                raise ValueError(f"{self.name}: the loss of seed {seed} is {loss}; leave out runs that diverged")


@dataclass(frozen=True)
class CostAtLoss:
    """What a curve costs at a loss."""

    cost: float | None
    """None if no two measured models bracket the loss."""
    kind: Kind
    """chord: the cost is at most this. not reached: no model ended as low. not bracketed: all ended lower."""


@dataclass(frozen=True)
class Multiplier:
    """The cost that the best curve needs for the ladder's loss / the ladder's cost."""

    estimate: float | None
    """None if no two measured models bracket the ladder's loss."""
    low: float | None
    """None: open, because nothing cheaper was measured; or no interval."""
    high: float | None
    """None: open, because nothing dearer was measured; or no interval."""
    kind: Kind
    loss_difference: float | None
    """Ladder minus curve at the ladder's cost, in nats per token; None if that cost is outside all measured ones."""
    loss_interval: tuple[float, float] | None


@dataclass(frozen=True)
class Test:
    """Whether a ladder beats the best of several curves."""

    outcome: Outcome
    multiplier: Multiplier
    curve: int | None
    """The index of the curve that needs the least for the ladder's loss; None without curves."""
    seeds: tuple[int, ...]
    """The ladder's."""
    detectable: float | None = None
    """The smallest loss difference that such seeds show four times in five; None if not known."""
    detectable_multiplier: float | None = None
    """The same as a multiplier; None if the curve was not measured so far."""
    critical: tuple[float, float] = (math.nan, math.nan)
    """How many standard errors it takes to win, and to lose."""
    degrees: float = 0.0
    """The degrees of freedom of the standard error; 0 if the noise is not known, as with one seed."""
    deviation: float = math.nan
    """The standard deviation of a loss between seeds, less what all runs of a seed share."""


def cost_at_loss(points: Sequence[tuple[float, float]], loss: float) -> CostAtLoss:
    """The cost at which the curve through `points`, pairs of cost and loss, reaches `loss`. Never extrapolates."""
    kept = [points[i] for i in _distinct(points)]
    if not kept:
        return CostAtLoss(None, "no curve")
    curve = Curve(np.log([cost for cost, _ in kept]), np.array([[mean for _, mean in kept]]))
    [position], [kind] = curve.positions(np.array([loss]))
    return CostAtLoss(None if math.isnan(position) else math.exp(position), kind)


def judge(ladders: Sequence[Arm], curves: Sequence[Sequence[Arm]], which: int = 0, confidence: float = 0.95) -> Test:
    """Compares `ladders[which]`, chosen as the best of `ladders`, with the best of `curves`.

    Won: at the ladder's cost every curve lies above the ladder's loss, by more than the noise between seeds and the
    choice of the best of `ladders` explain. Lost: some curve lies below, by more than the noise and the choice of the
    best of `curves` explain. The multiplier's interval holds the multipliers that the same test does not reject, so
    that it never contradicts the outcome. An empty curve is a size that was not measured: nothing wins against it.
    """
    ladder, arms = ladders[which], list(ladders)
    points = []
    for curve in curves:
        kept = _distinct([(arm.cost, math.fsum(arm.losses.values()) / len(arm.losses)) for arm in curve])
        points.append(range(len(arms), len(arms) + len(kept)))
        arms += [curve[i] for i in kept]
    design = design_of(tuple(tuple(sorted(arm.losses)) for arm in arms))
    losses = np.array([[arm.losses[seed] for arm in arms for seed in sorted(arm.losses)]])
    duels = [Duel(design, losses, [arm.cost for arm in arms], own, which) if own else None for own in points]
    fought = {k: duel for k, duel in enumerate(duels) if duel}
    seeds = tuple(sorted(ladder.losses))
    if not fought:
        return Test("unknown", Multiplier(None, None, None, "no curve", None, None), None, seeds)
    best = min(fought, key=lambda k: fought[k].need)
    estimate, kind = fought[best].estimates[0], fought[best].kinds[0]
    estimate = None if math.isnan(estimate) else math.exp(estimate)
    equal = [duel for duel in fought.values() if duel.covers]
    difference = max((float(duel.own[0] - duel.at_ladder[0]) for duel in equal), default=None)
    degrees = min(duel.noise.degrees for duel in fought.values())
    if len(seeds) < 2 or not degrees:
        return Test("unknown", Multiplier(estimate, None, None, kind, difference, None), best, seeds)
    contrasts = np.array([[duel.contrast(i) for i in range(len(ladders))] for duel in fought.values()])
    critical = critical_values(design, contrasts, which, degrees, confidence)
    found = {k: duel.test(*critical) for k, duel in fought.items()}
    outcome: Outcome = "unknown"
    if any(one.lost[0] for one in found.values()):
        outcome = "lost"
    elif all(duels) and all(one.won[0] for one in found.values()):
        outcome = "won"
    elif any(duel.covers and not found[k].won[0] for k, duel in fought.items()):
        outcome = "within the noise"
    low = min(float(one.low[0]) for one in found.values()) if all(duels) else -math.inf
    high = min(float(one.high[0]) for one in found.values())
    if estimate is not None:  # the interval's ends are interpolated
        low, high = min(low, math.log(estimate)), max(high, math.log(estimate))
    ends = _open(low), _open(high)
    differences = np.array([found[k].difference_interval[:, 0] for k, duel in fought.items() if duel.covers])
    interval = (float(differences[:, 0].max()), float(differences[:, 1].max())) if equal else None
    detectable = detectable_multiplier = None
    if fought[best].covers:
        detectable = float((critical[0] + t_quantile(POWER, degrees)) * fought[best].error_at_ladder[0])
        [position], _ = fought[best].curve.positions(fought[best].at_ladder - detectable)
        detectable_multiplier = None if math.isnan(position) else math.exp(position)
    multiplier = Multiplier(estimate, *ends, kind, difference, interval)
    deviation = math.sqrt(design.variances(losses)[0])
    return Test(outcome, multiplier, best, seeds, detectable, detectable_multiplier, critical, degrees, deviation)


class Curve:
    """Curves through measured losses: between neighbouring costs, a power law of the cost that passes through both.

    Its exponent is that of the law through these two points and the next, on average over the next on either side, and
    at least 0 (a straight line in log cost, the chord) and at most STEEPEST. So losses on one power law give that law.
    A single law fitted to all points would be biased where four points or more follow none. A dearer model that ended
    no lower than a cheaper one counts as that one: its training could have stopped there.
    """

    def __init__(self, x: Floats, losses: Floats, unknown_exponent: float = 0.0):
        """`x`: K log costs, increasing. `losses`: D x K. `unknown_exponent`: the exponent of chords."""
        num_points = len(x)
        self.x, self.losses = x, np.minimum.accumulate(losses, axis=1)
        source = np.maximum.accumulate(np.where(losses <= self.losses, np.arange(num_points), 0), axis=1)
        self._sources = source[:, :, None] == np.arange(num_points)
        exponents, gradients = (
            np.zeros((len(losses), num_points - 1)),
            np.zeros((len(losses), num_points - 1, num_points)),
        )
        num_laws = np.zeros(num_points - 1)
        for i in range(num_points - 2):
            exponent, gradient = _exponent(x[i : i + 3], self.losses[:, i : i + 3])
            exponents[:, i : i + 2] += exponent[:, None]
            gradients[:, i : i + 2, i : i + 3] += gradient[:, None]
            num_laws[i : i + 2] += 1
        num_laws = np.maximum(num_laws, 1)
        self.is_chord = exponents <= 2 * _FLATTEST
        self.exponents = np.where(self.is_chord, unknown_exponent, exponents / num_laws)
        self._gradients = np.where(self.is_chord[..., None], 0.0, gradients / num_laws[:, None])

    def at(self, x: Floats) -> tuple[Floats, Floats]:
        """The losses at G log costs (D x G), and what each measured loss adds to them, to first order (D x G x K).

        Below the cheapest measured cost and above the dearest, the loss measured there.
        """
        if len(self.x) == 1:
            return np.repeat(self.losses, len(x), axis=1), np.ones((len(self.losses), len(x), 1))
        x = np.clip(x, self.x[0], self.x[-1])
        i = np.clip(np.searchsorted(self.x, x, side="right") - 1, 0, len(self.x) - 2)
        share, slope = _share(self.exponents[:, i], x - self.x[i], self.x[i + 1] - self.x[i])
        fall, unit = self.losses[:, i + 1] - self.losses[:, i], np.eye(len(self.x))
        weights = (1 - share)[..., None] * unit[i] + share[..., None] * unit[i + 1]
        weights += (fall * slope)[..., None] * self._gradients[:, i]
        return self.losses[:, i] + fall * share, weights @ self._sources

    def positions(self, losses: Floats) -> tuple[Floats, list[Kind]]:
        """The log cost at which each of the D curves reaches its loss, or NaN; and how it is known, or why not."""
        positions, kinds = np.full(len(losses), np.nan), list[Kind]()
        for d, above in enumerate((self.losses > losses[:, None]).sum(1)):
            i = max(above - 1, 0)
            if above == len(self.x) or (above == 0 and self.losses[d, 0] < losses[d]):
                kinds.append("not reached" if above else "not bracketed")
                continue
            kinds.append("chord" if len(self.x) == 1 or self.is_chord[d, i] else "power law")
            positions[d] = self.x[i]
            if above:
                share = (self.losses[d, i] - losses[d]) / (self.losses[d, i] - self.losses[d, i + 1])
                a, width = self.exponents[d, i], self.x[i + 1] - self.x[i]
                positions[d] += -math.log1p(share * math.expm1(-a * width)) / a if a else share * width
        return positions, kinds


def _share(exponents: Floats, way: Floats, width: Floats) -> tuple[Floats, Floats]:
    """The share of a segment's fall in loss after `way` of its `width` in log cost; its derivative by the exponent."""
    a = np.where(exponents > 0, exponents, 1.0)
    part, whole = np.expm1(-a * way), np.expm1(-a * width)
    slope = (width * (whole + 1) * part - way * (part + 1) * whole) / whole**2
    return np.where(exponents > 0, part / whole, way / width), np.where(exponents > 0, slope, 0.0)


def _exponent(x: Floats, losses: Floats) -> tuple[Floats, Floats]:
    """The exponent, between 0 and STEEPEST, of the power law through three points each; its gradient by their losses.

    The first fall in loss over the second grows with the exponent; halving finds it.
    """
    first, second = losses[:, 0] - losses[:, 1], losses[:, 1] - losses[:, 2]
    one, two = x[1] - x[0], x[2] - x[1]
    low, high = np.zeros(len(losses)), np.full(len(losses), STEEPEST)
    for _ in range(48):
        middle = (low + high) / 2
        is_less = np.expm1(middle * one) * second < -np.expm1(-middle * two) * first
        low, high = np.where(is_less, middle, low), np.where(is_less, high, middle)
    is_inside = (low > _FLATTEST) & (high < STEEPEST)
    a, first, second = (np.where(is_inside, value, 1.0) for value in (low, first, second))
    growth = one / -np.expm1(-a * one) - two / np.expm1(a * two)
    gradient = np.stack([1 / first, -1 / first - 1 / second, 1 / second], axis=1) / growth[:, None]
    return low, np.where(is_inside[:, None], gradient, 0.0)


@dataclass(frozen=True)
class Noise:
    """How noisy a contrast of arms' means is: from the noise of all arms, and from its own scatter over the seeds."""

    variance: float
    """If the variance of a loss is 1."""
    share: float
    """The weight of its own scatter: 0.5 with two seeds, 0.6 with three, 0.71 with five."""
    scale: float
    """What the sum of its squared deviations by seed is multiplied with."""
    degrees: float
    """The degrees of freedom of the estimated variance (Satterthwaite), or 0."""


class Design:
    """Which seeds each of A arms has, and so how noisy the arms' means are.

    A loss is its arm's mean, plus what all runs of its seed share (the same data in the same order), plus noise. What a
    seed shares cancels in comparisons of arms with the same seeds; where seeds are missing, least squares takes it out;
    between arms without common seeds it counts as noise.
    """

    def __init__(self, seeds: Sequence[Sequence[int]]):
        arm = np.repeat(np.arange(len(seeds)), [len(own) for own in seeds])
        different, seed = np.unique(np.concatenate([np.array(own) for own in seeds]), return_inverse=True)
        self._is_seed = (seed == np.arange(len(different))[:, None]).astype(float)  # S x N
        effects = np.concatenate([arm == np.arange(len(seeds))[:, None], self._is_seed]).T.astype(float)
        if np.linalg.matrix_rank(effects) < len(seeds) + len(different) - 1:
            effects = effects[:, : len(seeds)]
        solution = np.linalg.pinv(effects)
        self.to_means = solution[: len(seeds)]  # A x N
        if len(solution) > len(seeds):
            self.to_means = self.to_means + solution[len(seeds) :].mean(0)
        self._to_residuals = np.eye(len(arm)) - effects @ solution  # N x N
        self.degrees = round(np.trace(self._to_residuals))

    def variances(self, losses: Floats) -> Floats:
        """The variance of the noise of one loss, pooled over all arms, in each of D data sets (D x N)."""
        return ((losses @ self._to_residuals) ** 2).sum(1) / max(self.degrees, 1)

    def by_seed(self, losses: Floats) -> Floats:
        """What each seed's noise adds to the arms' means: D x S x A."""
        return ((losses @ self._to_residuals)[:, None] * self._is_seed) @ self.to_means.T

    def noise(self, contrast: Floats) -> Noise:
        """How noisy a contrast of the arms' means (A) is."""
        weights = contrast @ self.to_means
        parts = weights * self._is_seed @ self._to_residuals
        variance, own = float(weights @ weights), float((parts**2).sum())
        num_seeds = np.count_nonzero((parts**2).sum(1) > 1e-12 * variance)
        if not self.degrees or num_seeds < 2:
            return Noise(variance, 0.0, 0.0, self.degrees)
        share = num_seeds / (num_seeds + 2)
        pooled, scale = (1 - share) * variance / self.degrees, share * variance / own
        squares = pooled**2 * self.degrees + 2 * pooled * scale * own + scale**2 * ((parts @ parts.T) ** 2).sum()
        return Noise(variance, share, scale, variance**2 / squares)

    def covariance(self, losses: Floats, noise: Noise) -> Floats:
        """The covariance of the arms' means in each of D data sets: D x A x A."""
        equal = (1 - noise.share) * self.variances(losses)[:, None, None] * (self.to_means @ self.to_means.T)
        by_seed = self.by_seed(losses)
        return equal + noise.scale * by_seed.transpose(0, 2, 1) @ by_seed

    @cached_property
    def _simulated(self) -> tuple[Floats, Floats, Floats]:
        losses = np.random.default_rng(0).standard_normal((_SIMULATIONS, len(self._to_residuals)))
        return losses @ self.to_means.T, self.by_seed(losses), self.variances(losses)

    def simulate(self, contrast: Floats) -> Floats:
        """A contrast in standard errors, in simulations in which it is 0 and all losses are equally noisy."""
        (means, by_seed, variances), noise = self._simulated, self.noise(contrast)
        own = ((by_seed @ contrast) ** 2).sum(1)
        return means @ contrast / np.sqrt((1 - noise.share) * variances * noise.variance + noise.scale * own)


@lru_cache(maxsize=32)
def design_of(seeds: tuple[tuple[int, ...], ...]) -> Design:
    """The design of arms with these seeds, kept with its simulations."""
    return Design(seeds)


@dataclass(frozen=True)
class Found:
    """What a test says of D data sets; logs of multipliers, -inf or inf where open."""

    low: Floats
    high: Floats
    won: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    difference_interval: Floats
    """Of ladder minus curve at the ladder's cost, in nats: 2 x D."""


class Duel:
    """A ladder against one curve, in D data sets. Costs are logs of multiples of the ladder's."""

    def __init__(self, design: Design, losses: Floats, costs: Sequence[float], points: Sequence[int], ladder: int):
        """`losses`: D x N. `costs`: of the A arms. `points`: the curve's arms, by cost."""
        self._costs, self._points, self._means = costs, list(points), losses @ design.to_means.T
        x, self.own = self._x(ladder), self._means[:, ladder]
        self.covers = bool(x[0] <= 0 <= x[-1])
        self.curve = Curve(x, self._means[:, self._points])
        self.estimates, self.kinds = self.curve.positions(self.own)
        self.noise = design.noise(self.contrast(ladder))
        sides = np.array([*self._points, ladder])
        covariance = design.covariance(losses, self.noise)[:, sides[:, None], sides]
        grid = np.unique(
            np.concatenate([x, [0.0] * self.covers, *(np.linspace(*pair, _STEPS) for pair in pairwise(x))])
        )
        self._grid, self._equal = grid, int(abs(grid).argmin())
        self._high = _with_errors(self.curve, grid, covariance)
        self._low = _with_errors(Curve(x, self._means[:, self._points], STEEPEST), grid, covariance)
        self.at_ladder, self.error_at_ladder = (part[:, self._equal] for part in self._high)

    @property
    def need(self) -> tuple[bool, float]:
        """Sorts curves by what they need for the ladder's loss in the first data set; if they reach it not, last."""
        x, kind = self.curve.x, self.kinds[0]
        ends = {"not reached": (True, x[-1]), "not bracketed": (False, x[0])}
        return ends.get(kind, (False, self.estimates[0]))

    def _x(self, ladder: int) -> Floats:
        """The curve's costs; if a ladder lies outside them by no more than EQUAL_COST, the nearest is 0."""
        x = np.log([self._costs[i] / self._costs[ladder] for i in self._points])
        nearest, slack = abs(x).argmin(), math.log1p(EQUAL_COST)
        if not x[0] <= 0 <= x[-1] and abs(x[nearest]) <= slack:
            x[nearest] = 0.0
        return x

    def contrast(self, ladder: int) -> Floats:
        """The weights of the arms' means in the curve's loss at a ladder's cost minus the ladder's, first data set."""
        weights = np.zeros(self._means.shape[1])
        weights[self._points] = Curve(self._x(ladder), self._means[:1, self._points]).at(np.zeros(1))[1][0, 0]
        weights[ladder] = -1.0
        return weights

    def test(self, critical_to_win: float, critical_to_lose: float) -> Found:
        """The multipliers at which curve and ladder differ by no more standard errors than the critical values.

        A chord lies above every power law through its ends. So a multiplier counts as too small only if the steepest
        law does as well, and no ladder wins because two points leave the law open.
        """
        x, grid = self.curve.x, self._grid
        too_small = self._low[0] - self.own[:, None] - critical_to_win * self._low[1]
        too_large = self.own[:, None] - self._high[0] - critical_to_lose * self._high[1]
        return Found(
            low=_first_kept(grid, too_small),
            high=-_first_kept(-grid[::-1], too_large[:, ::-1]),
            won=(x[-1] >= 0) & (too_small[:, grid <= max(0.0, x[0])] > 0).all(1),
            lost=(x[0] <= 0) & (too_large[:, grid >= min(0.0, x[-1])] > 0).all(1),
            difference_interval=np.stack([too_large[:, self._equal], -too_small[:, self._equal]]),
        )


def _with_errors(curve: Curve, x: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """A curve's losses, and the standard errors of their differences from the ladder's, which has the last place."""
    losses, weights = curve.at(x)
    contrasts = np.concatenate([weights, np.full((*losses.shape, 1), -1.0)], axis=2)
    return losses, np.sqrt(np.maximum((contrasts @ covariance * contrasts).sum(2), 0.0))


def _first_kept(x: Floats, excess: Floats) -> Floats:
    """Where `excess` first falls to 0: -inf if it starts there, the last x if it never does."""
    is_kept = excess <= 0
    first = np.where(is_kept.any(1), is_kept.argmax(1), len(x))
    after = np.clip(first, min(1, len(x) - 1), len(x) - 1)
    before = np.maximum(after - 1, 0)
    above, below = (np.take_along_axis(excess, i[:, None], 1)[:, 0] for i in (before, after))
    share = above / np.where(above > below, above - below, 1.0)
    crossing = x[before] + share * (x[after] - x[before])
    return np.where(first == 0, -np.inf, np.where(first == len(x), x[-1], crossing))


def critical_values(
    design: Design, contrasts: Floats, which: int, degrees: float, confidence: float = 0.95
) -> tuple[float, float]:
    """How many standard errors it takes to win against every curve, and to lose against some curve.

    `contrasts`: of each curve with each ladder (curves x ladders x A). The simulation finds how far chance alone takes
    the best of several ladders, or of several curves, from the rest.
    """
    alone = t_quantile((1 + confidence) / 2, degrees)

    def of_best(rows: Floats) -> float:
        if len(rows) == 1:
            return alone
        simulated = np.array([design.simulate(row) for row in rows])
        largest = np.concatenate([simulated.max(0), -simulated.min(0)])
        return max(alone, float(np.quantile(largest, (1 + confidence) / 2)))

    return max(of_best(rows) for rows in contrasts), of_best(contrasts[:, which])


def _open(log_multiplier: float) -> float | None:
    return None if math.isinf(log_multiplier) else math.exp(log_multiplier)


def t_quantile(probability: float, degrees: float) -> float:
    """The value that Student's t with `degrees` >= 1 of freedom stays below with `probability`.

    With t = sqrt(degrees) tan(angle), the density of the angle is proportional to cos(angle) ** (degrees - 1), which is
    smooth: 64 Gauss-Legendre nodes give its integral, halving finds the angle. (numpy has no t distribution, and scipy
    would be a large dependency for this one function.)
    """
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        inside = scale * middle / 2 * float(_WEIGHTS @ np.cos(middle * (_NODES + 1) / 2) ** (degrees - 1))
        low, high = (middle, high) if inside < abs(probability - 0.5) else (low, middle)
    return math.copysign(math.sqrt(degrees) * math.tan((low + high) / 2), probability - 0.5)


def _distinct(points: Sequence[tuple[float, float]]) -> list[int]:
    """The indices of points by cost; of those that cost the same, only the one with the lowest loss."""
    kept: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: points[i]):
        if kept and points[i][0] <= points[kept[-1]][0] * (1 + EQUAL_COST):
            kept[-1] = min(kept[-1], i, key=lambda j: points[j][1])
        else:
            kept.append(i)
    return kept
