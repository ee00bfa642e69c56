"""Charts as data: what they show, and the colours, markers and lines that every drawing of them uses."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from growctl.text.section import Drawn

Role = Literal["ladder", "control", "release"]
"""What a series stands for. Roles are told apart by line and marker, groups by colour, so no one needs the colour."""

FigureFormat = Literal["png", "svg", "pdf"]


@dataclass(frozen=True)
class Axis:
    """An axis."""

    label: str
    """What it measures, with the unit."""
    is_log: bool = False

    def has_place(self, value: float) -> bool:
        """Whether a value can be drawn: finite, and above 0 on a logarithmic axis."""
        return math.isfinite(value) and (value > 0 or not self.is_log)


@dataclass(frozen=True)
class Mark:
    """A measured point."""

    x: float
    y: float
    is_end: bool = False
    """Whether it ends a stage or a run: drawn large. The others are measurements on the way."""


@dataclass(frozen=True)
class Series:
    """Marks that belong together, joined by a line if there is more than one."""

    name: str
    marks: tuple[Mark, ...]
    role: Role
    group: str
    """Series of one group share a colour: a ladder and its releases, the seeds of one schedule."""
    label: str
    """Its entry in the legend, which several series may share, such as the seeds of a schedule."""

    @property
    def hides_dots(self) -> bool:
        """Whether only its ends get markers, because they would cover the line.

        So do controls: what they measured before their learning rate decayed is not to be compared.
        """
        return self.role == "control" or len(self.marks) > 20


@dataclass(frozen=True)
class Rule:
    """A line across the chart at one place of the x axis, such as a growth."""

    x: float
    label: str
    group: str = ""
    """The group whose colour it has."""


@dataclass(frozen=True)
class Chart(Drawn):
    """A chart. `summary` is its text for readers who cannot see it."""

    key: str
    """Its name in file names and links, such as `compute-against-perplexity`."""
    title: str
    summary: str
    x_axis: Axis
    y_axis: Axis
    series: tuple[Series, ...]
    rules: tuple[Rule, ...] = ()
    groups: tuple[str, ...] = ()
    """Groups in the order of their colours, so that a group has one colour in all charts of a page. Those not named
    here follow in the order in which they appear."""

    def marks_of(self, series: Series) -> list[Mark]:
        """The marks of a series that have a place in the chart."""
        return [mark for mark in series.marks if self.x_axis.has_place(mark.x) and self.y_axis.has_place(mark.y)]


COLOURS = ("#103ac0", "#f73e12", "#04805a", "#b03a8c", "#85831e", "#692994", "#3394b9", "#6b2a2a")
"""One for each group, in order. They stand out from white by 3:1 or more, as WCAG 2 asks of graphics, and stay apart
for readers with any of the three kinds of colour blindness."""


ROLES: dict[Role, tuple[str, dict[str, Any]]] = {
    "control": ("sPX", {"lw": 0.9, "ls": (0, (6, 3))}),
    "release": ("Dd*", {"lw": 1.2, "ls": (0, (2, 3))}),
    "ladder": ("o^h", {"lw": 1.8, "ls": "-"}),
}
"""Markers and lines, as matplotlib names them. The groups of a role take its markers in turns: in greyscale, they tell
groups apart. Later roles are drawn above earlier ones."""


def looks(chart: Chart) -> Iterator[tuple[Series, str, str]]:
    """Every series with its colour and its marker, the lowest first. Groups get colours in the chart's order, then as
    they appear."""
    groups = list(dict.fromkeys([*chart.groups, *(series.group for series in chart.series)]))
    for role, (markers, _) in ROLES.items():
        members = [series for series in chart.series if series.role == role]
        families = list(dict.fromkeys(each.group for each in members))
        for series in members:
            marker = markers[families.index(series.group) % len(markers)]
            yield series, COLOURS[groups.index(series.group) % len(COLOURS)], marker
