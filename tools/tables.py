"""Formats results as Markdown tables, and compares them with their goals."""

import math
from collections.abc import Iterable, Sequence

NOT_MEASURED = "Not yet measured.\n"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers. NOT_MEASURED if there are no rows."""
    lines = list(rows)
    if not lines:
        return NOT_MEASURED
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [headings, rule, *lines])


def at_most(value: float, goal: float, digits: int = 2, quartiles: Sequence[float] = ()) -> str:
    """A value with its quartiles, if given, and whether it is within its goal."""
    return _judged(with_quartiles(value, quartiles, digits), value <= goal)


def at_least(value: float, goal: float, digits: int = 2, quartiles: Sequence[float] = ()) -> str:
    """A value with its quartiles, if given, and whether it reaches its goal."""
    return _judged(with_quartiles(value, quartiles, digits), value >= goal)


def with_quartiles(value: float, quartiles: Sequence[float], digits: int) -> str:
    """A value, with its quartiles in brackets, if given."""
    around = " to ".join(f"{quartile:.{digits}f}" for quartile in quartiles)
    return f"{value:.{digits}f}" + (f" ({around})" if around else "")


def share_at_least(value: float | None, goal: float | None) -> str:
    """A share in percent, and whether it reaches its goal; n/a if it is unknown."""
    if value is None:
        return "n/a"
    shown = f"{value:.1%}".replace("%", " %")
    return shown if goal is None else _judged(shown, value >= goal)


def number(value: float | None, digits: int = 3) -> str:
    """A number to `digits` digits (decimals if it is below 1), without an exponent; n/a if it is unknown."""
    if value is None or math.isnan(value):
        return "n/a" if value is None else "NaN"
    decimals = max(0, digits - len(str(int(abs(value))))) if abs(value) >= 1 else digits
    return f"{value:,.{decimals}f}"


def ratio(value: float | None) -> str:
    """A ratio with two decimals; n/a if it is unknown."""
    return "n/a" if value is None else f"{value:.2f}"


def _judged(shown: str, met: bool) -> str:
    return f"{shown}, met" if met else f"**{shown}, not met**"
