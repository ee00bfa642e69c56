"""The colours, markers and lines of charts: the page and the figures for papers tell series apart in the same way."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from growctl.content.chart import Chart, Role, Series


@dataclass(frozen=True)
class Colour:
    """A colour for each background. Both stand out from it by 3:1 or more, as WCAG 2 asks of graphics."""

    light: str
    """On white."""
    dark: str
    """On black and nearly black."""


COLOURS = (
    Colour("#103ac0", "#69a5ff"),
    Colour("#f73e12", "#ff6c2c"),
    Colour("#04805a", "#14e59a"),
    Colour("#b03a8c", "#e28aba"),
    Colour("#85831e", "#eccf31"),
    Colour("#692994", "#8e6dff"),
    Colour("#3394b9", "#c6dafc"),
    Colour("#6b2a2a", "#b26d77"),
)
"""One for each group, in order. They stay apart for readers with any of the three kinds of colour blindness."""

_FEW = 20
"""A joined series of more marks is drawn as a line, and its ends: markers would cover it."""

GREY = Colour("#6a6f78", "#a3a9b3")
"""Published figures, which were not measured here."""


@dataclass(frozen=True)
class Marker:
    """The shape of a point."""

    name: str
    path: str
    """Its outline as an SVG path around (0, 0), about 1 in radius."""
    matplotlib: str
    """Its name in matplotlib."""


CIRCLE = Marker("circle", "M-1 0A1 1 0 1 1 1 0A1 1 0 1 1-1 0Z", "o")
UP = Marker("up", "M0-1.2L1.1 .8H-1.1Z", "^")
HEXAGON = Marker("hexagon", "M0-1.1L.95-.55V.55L0 1.1L-.95 .55V-.55Z", "h")
SQUARE = Marker("square", "M-.9-.9H.9V.9H-.9Z", "s")
PLUS = Marker("plus", "M-.35-1.1H.35V-.35H1.1V.35H.35V1.1H-.35V.35H-1.1V-.35H-.35Z", "P")
CROSS = Marker("cross", "M0-.5L.6-1.1L1.1-.6L.5 0L1.1 .6L.6 1.1L0 .5L-.6 1.1L-1.1 .6L-.5 0L-1.1-.6L-.6-1.1Z", "X")
DIAMOND = Marker("diamond", "M0-1.3L1.1 0L0 1.3L-1.1 0Z", "D")
THIN_DIAMOND = Marker("thin-diamond", "M0-1.4L.7 0L0 1.4L-.7 0Z", "d")
STAR = Marker("star", "M0-1.3L.32-.42H1.24L.5 .16L.78 1.06L0 .52L-.78 1.06L-.5 .16L-1.24-.42H-.32Z", "*")
DOWN = Marker("down", "M0 1.2L1.1-.8H-1.1Z", "v")
RIGHT = Marker("right", "M1.2 0L-.8 1.1V-1.1Z", ">")
LEFT = Marker("left", "M-1.2 0L.8 1.1V-1.1Z", "<")

MARKERS: dict[Role, tuple[Marker, ...]] = {
    "ladder": (CIRCLE, UP, HEXAGON),
    "control": (SQUARE, PLUS, CROSS),
    "release": (DIAMOND, THIN_DIAMOND, STAR),
    "published": (DOWN, RIGHT, LEFT),
    "plain": (CIRCLE, UP, HEXAGON),
}
"""The markers of a role, which its groups take in turns: without colours, in greyscale, markers tell groups apart, and
as their number has no divisor in common with that of the colours, 24 groups are all different. Only `plain` series,
which have a chart to themselves, share theirs with ladders."""


@dataclass(frozen=True)
class Line:
    """How a line is drawn."""

    width: float
    """In pixels of the page."""
    dashes: tuple[float, ...] = ()
    """Lengths of dashes and gaps, in pixels; none for a solid line."""


LINES: dict[Role, Line] = {
    "ladder": Line(2.5),
    "control": Line(1.25, (6, 3)),
    "release": Line(1.75, (2, 3)),
    "published": Line(1.25, (1, 4)),
    "plain": Line(1.75),
}
_PLAIN_DASHES = ((), (8, 3), (8, 3, 2, 3))
"""Plain series may have too many points for markers. Then dashes tell those of one colour apart."""


@dataclass(frozen=True)
class Look:
    """How a series is drawn."""

    number: int
    """The place of its colour in COLOURS; -1 for grey."""
    marker: Marker
    line: Line
    is_hollow: bool
    """Whether its markers are outlines."""

    @property
    def colour(self) -> Colour:
        """Its colour."""
        return COLOURS[self.number] if self.number >= 0 else GREY


def looks(chart: Chart) -> tuple[Look, ...]:
    """How each series of a chart is drawn. Groups get colours in the chart's order, then as they appear."""
    groups = dict.fromkeys((*chart.groups, *group_places(chart.series)))
    measured = {group: place for place, group in enumerate(groups)}
    published = [series.entry for series in chart.series if series.role == "published"]
    published = list(dict.fromkeys(published))  # they have no colour, so that each needs a marker
    places = {role: group_places([each for each in chart.series if each.role == role]) for role in MARKERS}
    return tuple(
        _published_look(published.index(series.entry))
        if series.role == "published"
        else _look(series.role, measured[group_of(series)], places[series.role][group_of(series)])
        for series in chart.series
    )


def group_places(series: Sequence[Series]) -> dict[str, int]:
    """The place of each measured group in order of appearance."""
    groups = dict.fromkeys(group_of(each) for each in series if each.role != "published")
    return {group: place for place, group in enumerate(groups)}


def is_quiet(series: Series) -> bool:
    """Whether a series is drawn as a line with markers at its ends alone.

    So are controls: what they measured on the way, before their learning rate decays, is not to be compared.
    """
    return series.is_joined and (series.role == "control" or len(series.marks) > _FEW)


def group_of(series: Series) -> str:
    """The group of a series, or its own name if it has none."""
    return series.group or series.name


def _look(role: Role, place: int, place_in_role: int) -> Look:
    cycle, number = divmod(place, len(COLOURS))
    line = LINES[role]
    if role == "plain":
        line = replace(line, dashes=_PLAIN_DASHES[cycle % len(_PLAIN_DASHES)])
    return Look(number, MARKERS[role][place_in_role % len(MARKERS[role])], line, is_hollow=False)


def _published_look(place: int) -> Look:
    markers = MARKERS["published"]
    return Look(-1, markers[place % len(markers)], LINES["published"], is_hollow=True)
