"""Formats results as Markdown tables, compares them with their goals, and fills the generated parts of pages."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
NOT_MEASURED = "Not yet measured.\n"

Rows = Iterator[dict[str, str]]
"""The cells of each row of a table, by heading."""

_MARKED = re.compile(r"(<!-- (?P<name>[a-z-]+): [^\n]* -->\n).*?(<!-- end of (?P=name) -->)", re.DOTALL)


def filled(page: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """`page` with every part between its marks as it is now. KeyError for a mark whose part is not in `parts`."""
    return _MARKED.sub(lambda match: f"{match[1]}\n{parts[match['name']]()}\n{match[3]}", page)


def table(rows: Iterable[Mapping[str, str]]) -> str:
    """A Markdown table of rows of cells by heading: the first is text, the others numbers. NOT_MEASURED if empty."""
    lines = list(rows)
    if not lines:
        return NOT_MEASURED
    rule = ["---", *["---:"] * (len(lines[0]) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [lines[0], rule, *(line.values() for line in lines)])


def held(
    value: float,
    *,
    most: float | None = None,
    least: float | None = None,
    digits: int = 2,
    quartiles: Sequence[float] = (),
) -> str:
    """A value, with its quartiles in brackets if given; bold if it misses its goal."""
    shown = f"{value:.{digits}f}"
    if quartiles:
        shown += f" ({' to '.join(f'{quartile:.{digits}f}' for quartile in quartiles)})"
    return judged(shown, (most is None or value <= most) and (least is None or value >= least))


def judged(shown: str, met: bool) -> str:
    """A value, bold if it misses its goal."""
    return shown if met else f"**{shown}**"


def number(value: float) -> str:
    """A number to three digits (decimals if it is below 1), without an exponent."""
    return f"{value:,.{max(0, 3 - len(str(int(abs(value))))) if abs(value) >= 1 else 3}f}"
