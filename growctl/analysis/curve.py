"""Curves of losses against cost: power laws between measured models, never extrapolated.

Costs are logs. Shapes: D data sets, K points of a curve, G costs.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Kind = Literal["power law", "chord", "not reached", "not bracketed", "no curve"]

EQUAL_COST = 0.02  # models whose costs differ by at most this share cost the same
STEEPEST = 2.0  # the largest exponent of a power law that the judge believes; measured ones are 0.05 to 1

_FLATTEST = 1e-3  # with a smaller exponent, a power law is a straight line in log cost to four digits
_NUDGE = 1e-6  # nats by which a loss changes for a derivative


class Curve:
    """Curves through measured losses: between neighbouring costs, a power law of the cost that passes through both.

    Its exponent is that of the law through these two points and the next, on average over the next on either side, and
    at least 0 (a straight line in log cost, the chord) and at most STEEPEST. So losses on one power law give that law.
    A single law fitted to all points would be biased where four points or more follow none. A dearer model that ended
    no lower than a cheaper one counts as that one: its training could have stopped there.
    """

    def __init__(self, x: Floats, losses: Floats, unknown_exponent: float = 0.0):
        """`x`: K costs, increasing. `losses`: D x K. `unknown_exponent`: that of chords."""
        self.x, self.losses = x, np.minimum.accumulate(losses, axis=1)
        self._measured, self._unknown_exponent = losses, unknown_exponent
        exponents, num_laws = np.zeros((len(losses), len(x) - 1)), np.zeros(len(x) - 1)
        for i in range(len(x) - 2):
            exponents[:, i : i + 2] += _exponent(x[i : i + 3], self.losses[:, i : i + 3])[:, None]
            num_laws[i : i + 2] += 1
        self.is_chord = exponents < _FLATTEST
        self._exponents = np.where(self.is_chord, unknown_exponent, exponents / np.maximum(num_laws, 1))

    def at(self, x: Floats) -> Floats:
        """The losses at G costs, D x G. Below the cheapest measured cost and above the dearest, the loss there."""
        if len(self.x) == 1:
            return np.repeat(self.losses, len(x), axis=1)
        x = np.clip(x, self.x[0], self.x[-1])
        i = np.clip(np.searchsorted(self.x, x, side="right") - 1, 0, len(self.x) - 2)
        a, way, width = self._exponents[:, i], x - self.x[i], self.x[i + 1] - self.x[i]
        safe = np.where(a > 0, a, 1.0)
        share = np.where(a > 0, np.expm1(-safe * way) / np.expm1(-safe * width), way / width)
        return self.losses[:, i] + (self.losses[:, i + 1] - self.losses[:, i]) * share

    def weights(self, x: Floats) -> Floats:
        """What each measured loss adds to the losses at G costs, to first order: D x G x K."""
        nudged = (self._measured[:, None] + _NUDGE * np.eye(len(self.x))).reshape(-1, len(self.x))
        after = Curve(self.x, nudged, self._unknown_exponent).at(x).reshape(*self.losses.shape, len(x))
        return ((after - self.at(x)[:, None]) / _NUDGE).transpose(0, 2, 1)

    def costs_at(self, losses: Floats) -> tuple[Floats, list[Kind]]:
        """Where each of the D curves reaches its loss, or NaN; and how that is known, or why it is not."""
        costs, kinds = np.full(len(losses), np.nan), list[Kind]()
        for d, loss in enumerate(losses):
            measured = self.losses[d]
            if not measured[-1] <= loss <= measured[0]:
                kinds.append("not reached" if loss < measured[-1] else "not bracketed")
                continue
            i = max((measured > loss).sum() - 1, 0)
            kinds.append("chord" if len(self.x) == 1 or self.is_chord[d, i] else "power law")
            costs[d] = self.x[i]
            if measured[i] > loss:
                share = (measured[i] - loss) / (measured[i] - measured[i + 1])
                a, width = self._exponents[d, i], self.x[i + 1] - self.x[i]
                costs[d] += -math.log1p(share * math.expm1(-a * width)) / a if a else share * width
        return costs, kinds


def _exponent(x: Floats, losses: Floats) -> Floats:
    """The exponent, between 0 and STEEPEST, of the power law through three points each.

    The first fall in loss over the second grows with the exponent; halving finds it.
    """
    first, second = losses[:, 0] - losses[:, 1], losses[:, 1] - losses[:, 2]
    low, high = np.zeros(len(losses)), np.full(len(losses), STEEPEST)
    for _ in range(50):
        middle = (low + high) / 2
        is_less = np.expm1(middle * (x[1] - x[0])) * second < -np.expm1(middle * (x[1] - x[2])) * first
        low, high = np.where(is_less, middle, low), np.where(is_less, high, middle)
    return low


def distinct(points: Sequence[tuple[float, float]]) -> list[int]:
    """The indices of points by cost; of those that cost the same, only the one with the lowest loss."""
    kept: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: points[i]):
        if kept and points[i][0] <= points[kept[-1]][0] * (1 + EQUAL_COST):
            kept[-1] = min(kept[-1], i, key=lambda j: points[j][1])
        else:
            kept.append(i)
    return kept
