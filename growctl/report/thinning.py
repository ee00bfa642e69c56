"""Chooses the points of a long curve that a chart draws."""

import math
from collections.abc import Sequence

LEAST = 4
"""The fewest points that can hold both ends and both extremes."""


def thinned(values: Sequence[float], most: int) -> list[int]:
    """The places of at most `most` of `values`, ascending: both ends, and the extremes of each stretch between them.

    So the curve keeps its range and every spike that is the highest of its stretch. Values that are not finite cannot
    be drawn, and are never chosen. `most` is at least LEAST.
    """
    finite = [place for place, value in enumerate(values) if math.isfinite(value)]
    if len(finite) <= most:
        return finite
    inner, stretches = finite[1:-1], (most - 2) // 2
    chosen = {finite[0], finite[-1]}
    for number in range(stretches):
        stretch = inner[number * len(inner) // stretches : (number + 1) * len(inner) // stretches]
        chosen |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    return sorted(chosen)


def bends(values: Sequence[float]) -> list[float]:
    """`values` with NaN for those inside a straight stretch, so that a curve is the same without them."""
    slack = 1e-9 * max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    inside = {
        place
        for place in range(1, len(values) - 1)
        if abs(values[place - 1] - 2 * values[place] + values[place + 1]) <= slack
    }
    return [math.nan if place in inside else value for place, value in enumerate(values)]
