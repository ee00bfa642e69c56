"""Places the labels of a chart's vertical lines in rows above it, so that none covers another."""

from collections.abc import Sequence
from dataclasses import dataclass

ROW_HEIGHT = 16
"""Pixels."""
CHARACTER_WIDTH = 6.6
"""Pixels of an average character at the size of these labels, rounded up."""
_GAP = 12.0
"""Pixels between labels of one row, with the room between a line and its label."""
_COINCIDE = 3.0
"""Pixels between lines below which they look like one."""
_LONGEST = 30
"""Characters; longer labels are cut. The table of the chart's data has all of them."""


@dataclass(frozen=True)
class PlacedLabel:
    """A label beside the top of its line."""

    place: float
    """Of its line: 0 at the start of the axis, 1 at its end."""
    text: str
    style: str
    """What the caller passed for the line's colour."""
    row: int
    """0 is the row next to the plot."""
    is_left: bool
    """Whether it stands left of its line: there is no room on the right."""


def place_labels(labels: Sequence[tuple[float, str, str]], width: float) -> list[PlacedLabel]:
    """Places labels, each (place of its line, text, style), above a plot of `width` pixels, the last line first.

    Where lines of one style with the same label crowd, one label is enough; so it is for lines of any style that
    coincide. Labels outside the plot are left out.
    """
    rows: list[list[tuple[float, float, str, str]]] = []
    placed: list[PlacedLabel] = []
    for place, text, style in sorted(dict.fromkeys(labels), reverse=True):
        if not 0 <= place <= 1:
            continue
        text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
        length = len(text) * CHARACTER_WIDTH + _GAP
        is_left = place * width + length > width and place > 0.5
        start = place * width - (length if is_left else 0.0)
        end = start + length
        overlapping = [[said for low, high, *said in row if low < end and start < high] for row in rows]
        if any([text, style] in row for row in overlapping) or any(
            text == other.text and abs(place - other.place) * width < _COINCIDE for other in placed
        ):
            continue
        number = next((number for number, row in enumerate(overlapping) if not row), len(rows))
        if number == len(rows):
            rows.append([])
        rows[number].append((start, end, text, style))
        for row in rows[:number]:
            row.append((place * width, place * width, "", ""))  # its line passes through
        placed.append(PlacedLabel(place, text, style, number, is_left))
    return placed


def rows_used(labels: Sequence[PlacedLabel]) -> int:
    """The number of rows that labels take."""
    return max((label.row + 1 for label in labels), default=0)
