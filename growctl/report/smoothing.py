"""Smooths training losses: the mean of each log line and the lines before it."""

import math
from collections.abc import Sequence

SHARE, LEAST, MOST = 50, 5, 100
"""A mean covers one in SHARE of a stage's lines, but from LEAST to MOST of them."""


def window_of(num_lines: int) -> int:
    """The number of log lines that a mean covers, in a stage that has `num_lines`."""
    return min(MOST, max(LEAST, num_lines // SHARE))


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    """For each line, the mean of the last `window` lines up to it, or of all if there are fewer.

    Lines that are not finite do not count; NaN where none counts.
    """
    means: list[float] = []
    total, count = 0.0, 0
    for place, loss in enumerate(losses):
        if math.isfinite(loss):
            total, count = total + loss, count + 1
        if place >= window and math.isfinite(gone := losses[place - window]):
            total, count = total - gone, count - 1
        means.append(total / count if count else math.nan)
    return means


def mean_of_last(losses: Sequence[float], window: int) -> float | None:
    """The mean of the last `window` lines; None if none of them is finite."""
    finite = [loss for loss in losses[-window:] if math.isfinite(loss)]
    return sum(finite) / len(finite) if finite else None
