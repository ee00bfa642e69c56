"""Axes as arithmetic: where a value lies on an axis, and which values get a tick."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from growctl.content.chart import Axis
from growctl.text.formatting import short_count

_MARGIN = 0.04
"""Room before the first and after the last value, as a share of the axis."""


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`."""

    low: float
    high: float
    is_log: bool = False

    @classmethod
    def over(cls, values: Iterable[float], is_log: bool) -> "Scale":
        """A scale on which all `values` have room: at least one, each `is_drawable`.

        A linear scale starts at 0 if that is near.
        """
        low, high = min(found := list(values)), max(found)
        if is_log:
            span = math.log(high / low) * _MARGIN or math.log(1.5)
            return cls(low / math.exp(span), high * math.exp(span), True)
        span = (high - low) * _MARGIN or abs(high) / 2 or 1.0
        starts_at_zero = 0 <= low <= (high - low) / 2
        return cls(0.0 if starts_at_zero else low - span, high + span)

    def place(self, value: float) -> float:
        """The place of a value: 0 at the start of the axis, 1 at its end."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """Round values on the axis: `most` or fewer, and at least two where possible."""
        if self.is_log:
            for mantissas in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
                found = self._powers(mantissas)
                if len(found) <= most:
                    break
            if len(found) > most:
                found = found[:: math.ceil(len(found) / most)]
            if len(found) >= 3 or self.high / self.low > 20:
                return found
        return self._round_values(most)

    def _powers(self, mantissas: tuple[float, ...]) -> list[float]:
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        values = (float(f"{mantissa}e{exponent}") for exponent in exponents for mantissa in mantissas)
        return [value for value in values if self.low <= value <= self.high]

    def _round_values(self, most: int) -> list[float]:
        exponent = math.floor(math.log10((self.high - self.low) / most))
        for step in (float(f"{mantissa}e{exponent + more}") for more in (0, 1) for mantissa in (1, 2, 2.5, 5)):
            first, last = math.ceil(self.low / step), math.floor(self.high / step)
            if last - first < most:
                break
        return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def is_drawable(value: float | None, axis: Axis) -> bool:
    """Whether a value has a place on an axis: finite, and above 0 on a logarithmic one."""
    return value is not None and math.isfinite(value) and (value > 0 or not axis.is_log)


def tick_labels(ticks: list[float]) -> list[str]:
    """The labels of one axis, in one style: 0.05, 250, 20k, 1.5M; with exponents if a value is very large or small."""
    sizes = [abs(tick) for tick in ticks if tick]
    if sizes and (max(sizes) >= 1e12 or min(sizes) < 1e-3):
        return [re.sub(r"e\+?(-?)0*", r"e\1", f"{tick:.3g}") if tick else "0" for tick in ticks]
    if sizes and max(sizes) >= 1000:
        digits = [short_count(tick) for tick in ticks]
        return digits if len(set(digits)) == len(digits) else [f"{tick:,.12g}" for tick in ticks]
    return [f"{tick:.12g}" for tick in ticks]
