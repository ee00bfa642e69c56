"""Draws charts as figures to put into slides and papers: PNG, SVG and PDF, each with its fonts."""

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.style
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator, NullFormatter, NullLocator

from growctl.content.chart import Axis, Chart, Mark, Series
from growctl.content.formats import FigureFormat, FigureStyle
from growctl.content.palette import Look, group_of, is_quiet, looks
from growctl.content.rule_labels import CHARACTER_WIDTH, place_labels, rows_used
from growctl.content.scale import Scale, is_drawable, tick_labels
from growctl.text.escaping import visible

_INK, _FAINT = "#222222", "#8a8f98"
_PLACES = {"ladder": 5, "release": 4, "control": 3, "plain": 3, "published": 2}
"""What is drawn over what."""

_RESULT = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "growctl"}
"""Embeds fonts in a form that journals accept, and makes equal figures equal files."""
_NO_DATE: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def figure_file(chart: Chart, kind: FigureFormat, style: FigureStyle = "screen", axis: Axis | None = None) -> bytes:
    """The content of a file with `chart`, drawn on `axis`, or on its first x axis. Equal charts make equal files."""
    buffer = io.BytesIO()
    with _rules_of(style):
        draw(chart, style, axis).savefig(buffer, format=kind, metadata=_NO_DATE[kind])
    return buffer.getvalue()


def draw(chart: Chart, style: FigureStyle = "screen", axis: Axis | None = None) -> Figure:
    """`chart` as a figure, drawn on `axis`, or on its first x axis."""
    with _rules_of(style):
        return _Drawing(chart, style, axis or chart.x_axes[0]).figure


@contextmanager
def _rules_of(style: FigureStyle) -> Iterator[None]:
    sheet = Path(__file__).with_name(f"{style.partition('-')[0]}.mplstyle")
    with matplotlib.style.context([str(sheet), _RESULT]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a name in a script that no font here has
        yield


@dataclass(frozen=True)
class _Sizes:
    """What the styles change, in points and inches."""

    width: float
    height: float
    line: float
    """Scales the widths of lines."""
    dot: float
    """Markers on the way."""
    row: float
    """Height of a row of labels."""
    character: float
    """Width of a character, relative to the size of the font."""

    @classmethod
    def of(cls, style: FigureStyle) -> "_Sizes":
        """The sizes of a style."""
        if style == "screen":
            return cls(8.0, 5.0, 0.9, 2.6, 14.0, 0.56)
        return cls(6.75 if style == "paper-wide" else 3.25, 2.6, 0.55, 1.4, 9.5, 0.46)


class _Drawing:
    """A chart being drawn."""

    def __init__(self, chart: Chart, style: FigureStyle, axis: Axis):
        self.chart, self.style, self.axis, self.sizes = chart, style, axis, _Sizes.of(style)
        self.looks = looks(chart)
        self.figure = Figure(figsize=(self.sizes.width, self.sizes.height), layout="constrained")
        self.axes = self.figure.add_subplot()
        for series, look in zip(chart.series, self.looks, strict=True):
            self._draw_series(series, look)
        scales = self._frame()
        self._legend()
        rows = self._rules(scales[0]) if scales else 0
        if style == "screen":
            self.axes.set_title(_literal(chart.title), color=_INK, pad=8 + rows * self.sizes.row)

    def _draw_series(self, series: Series, look: Look) -> None:
        marks = [mark for mark in series.marks if self._has_place(mark)]
        colour, above = look.colour.light, _PLACES[series.role]
        if series.is_joined:
            is_way = series.role == "control" and not series.is_guide
            self.axes.plot(
                *_places(marks, self.axis),
                color=colour,
                linewidth=look.line.width * self.sizes.line * (0.6 if series.is_guide else 1.0),
                linestyle=_dashes((1.0, 2.0) if series.is_guide else look.line.dashes),
                alpha=0.45 if is_way else 0.9,
                zorder=above,
            )
        if series.is_guide:
            return
        all_large = not series.is_joined or series.role == "published"
        ends = [mark for mark in marks if mark.is_end or all_large]
        ways = [mark for mark in marks if not (mark.is_end or all_large) and mark.facts]
        if not is_quiet(series):
            self.axes.plot(
                *_places(ways, self.axis), "o", color=colour, ms=self.sizes.dot, mew=0, alpha=0.9, zorder=above
            )
        self.axes.plot(*_places(ends, self.axis), **self._marker(series, look), linestyle="none", zorder=above + 5)
        for mark in ends:
            if mark.interval:
                low, high = mark.interval
                self.axes.errorbar(
                    mark.x[self.axis.key],
                    mark.y,
                    [[max(0.0, mark.y - low)], [max(0.0, high - mark.y)]],
                    color=colour,
                    linewidth=1.2 * self.sizes.line,
                    capsize=self.sizes.dot,
                    zorder=above + 4,
                )

    def _marker(self, series: Series, look: Look) -> dict[str, Any]:
        colour = look.colour.light
        is_open = look.is_hollow or series.role == "release"
        edge = (
            {"mfc": "white", "mec": colour, "mew": 1.6 * self.sizes.line} if is_open else {"mec": "white", "mew": 0.5}
        )
        return {"color": colour, "marker": look.marker.matplotlib} | edge

    def _has_place(self, mark: Mark) -> bool:
        return is_drawable(mark.x.get(self.axis.key), self.axis) and is_drawable(mark.y, self.chart.y_axis)

    def _frame(self) -> tuple[Scale, Scale] | None:
        """Limits, ticks and labels of the axes; None if there is nothing to draw."""
        limit = self.chart.y_limit or math.inf
        drawn = [mark for series in self.chart.series for mark in series.marks if self._has_place(mark)]
        seen = [mark for mark in drawn if mark.y <= limit]
        for spine in ("top", "right"):
            self.axes.spines[spine].set_visible(False)
        self.axes.tick_params(which="both", color=_INK, labelcolor=_INK)
        self.axes.set_xlabel(_literal(self.axis.label), color=_INK)
        size = float(self.axes.yaxis.label.get_fontsize())
        room = int((self.sizes.height * 72 - 40) / (size * self.sizes.character))
        self.axes.set_ylabel("\n".join(textwrap.wrap(_literal(self.chart.y_axis.label), room)), color=_INK)
        if not seen:
            self.axes.set(xticks=[], yticks=[])
            self.axes.text(0.5, 0.5, "nothing measured yet", transform=self.axes.transAxes, ha="center", color=_FAINT)
            return None
        ends = [end for mark in seen for end in (mark.y, *(mark.interval or ())) if is_drawable(end, self.chart.y_axis)]
        x_scale = Scale.over((mark.x[self.axis.key] for mark in seen), self.axis.is_log)
        y_scale = Scale.over(ends, self.chart.y_axis.is_log)
        self.axes.set_xscale("log" if x_scale.is_log else "linear")
        self.axes.set_yscale("log" if y_scale.is_log else "linear")
        size = matplotlib.rcParams["xtick.labelsize"]
        room = (self.sizes.width * 72 - 60) / (size * self.sizes.character)
        _set_ticks(self.axes.xaxis, x_scale, lambda label: (len(label) + (4 if "e" in label else 1)) / room)
        _set_ticks(self.axes.yaxis, y_scale, lambda label: 2.2 * size / (self.sizes.height * 72 - 60))
        self.axes.set_xlim(x_scale.low, x_scale.high)
        self.axes.set_ylim(y_scale.low, y_scale.high)
        self.axes.grid(color=_INK, alpha=0.1, linewidth=0.6)
        return x_scale, y_scale

    def _legend(self) -> None:
        """An entry for each label, below the axes, in as many columns as fit; the figure grows by its height."""
        size = matplotlib.rcParams["legend.fontsize"]
        characters = int(self.sizes.width * 72 / (self.sizes.character * size))
        entries: dict[str, Line2D] = {}
        for series, look in zip(self.chart.series, self.looks, strict=True):
            if not series.is_guide and series.entry not in entries:
                entries[series.entry] = self._swatch(series, look)
        if not entries:
            return
        room = 10  # characters that a swatch and the gap between columns take
        longest = max(map(len, entries)) + room
        columns = max(1, min(len(entries), characters // longest))
        names = ["\n".join(textwrap.wrap(_literal(name), characters - room)) for name in entries]
        lines = sum(name.count("\n") + 1 for name in names) / columns
        self.figure.set_figheight(self.sizes.height + math.ceil(lines) * size * 1.25 / 72)
        self.figure.legend(
            list(entries.values()),
            names,
            loc="outside lower left",
            ncols=columns,
            labelcolor=_INK,
            frameon=False,
            handlelength=2.6,
            columnspacing=1.2,
            labelspacing=0.3,
            borderpad=0.2,
        )

    def _swatch(self, series: Series, look: Look) -> Line2D:
        """What stands for a series in the legend."""
        width = look.line.width * self.sizes.line if series.is_joined else 0.0
        line: dict[str, Any] = {"color": look.colour.light, "linewidth": width}
        marker = self._marker(series, look) if _has_large_marks(series) else {}
        return Line2D([], [], **line | marker, linestyle=_dashes(look.line.dashes))

    def _rules(self, scale: Scale) -> int:
        """Draws the vertical lines, each up to its label above the axes; returns the rows that the labels take."""
        self.figure.draw_without_rendering()  # lays the axes out
        points = self.axes.get_position().width * self.sizes.width * 72
        size = matplotlib.rcParams["legend.fontsize"]
        colours = {group_of(each): look.colour.light for each, look in zip(self.chart.series, self.looks, strict=True)}
        rules = [(rule.x[self.axis.key], rule) for rule in self.chart.rules if self.axis.key in rule.x]
        seen = [(x, rule) for x, rule in rules if is_drawable(x, self.axis) and 0 <= scale.place(x) <= 1]
        labels = [(scale.place(x), _literal(rule.label), colours.get(rule.group, _INK)) for x, rule in seen]
        placed = place_labels(labels, points * CHARACTER_WIDTH / (self.sizes.character * size))
        tops = {(label.place, label.style): label.row for label in placed}
        rule: dict[str, Any] = {"linestyle": (0, (1, 2)), "linewidth": self.sizes.line, "alpha": 0.8, "zorder": 1}
        for (x, _), (place, _, colour) in zip(seen, labels, strict=True):
            self.axes.axvline(x, color=colour, **rule)
            if (place, colour) in tops:
                height = (tops[place, colour] + 0.8) * self.sizes.row / self.figure.get_figheight() / 72
                top = 1.0 + height / self.axes.get_position().height
                self.axes.plot(
                    [x, x], [1.0, top], color=colour, **rule, clip_on=False, transform=self.axes.get_xaxis_transform()
                )
        for label in placed:
            self.axes.annotate(
                label.text,
                (label.place, 1.0),
                (-3 if label.is_left else 3, label.row * self.sizes.row + 2),
                "axes fraction",
                "offset points",
                ha="right" if label.is_left else "left",
                va="bottom",
                fontsize=size,
                color=_INK,
            )
        return rows_used(placed)


def _places(marks: Sequence[Mark], axis: Axis) -> tuple[list[float], list[float]]:
    return [mark.x[axis.key] for mark in marks], [mark.y for mark in marks]


def _has_large_marks(series: Series) -> bool:
    """Whether its legend shows a marker; a series that has not begun gets the one that it will have."""
    is_line = series.is_joined and series.role != "published"
    return not is_line or not series.marks or any(mark.is_end for mark in series.marks)


def _dashes(lengths: Sequence[float]) -> Any:
    return (0, tuple(lengths)) if lengths else "solid"


def _literal(text: str) -> str:
    """`text` as matplotlib shows it: without control codes, and with dollar signs that do not start a formula."""
    return visible(text).replace("$", r"\$")


def _set_ticks(axis: XAxis | YAxis, scale: Scale, room: Callable[[str], float]) -> None:
    """As many labelled ticks as have room, and on a logarithmic axis all whole digits without labels.

    `room`: the share of the axis that a label takes.
    """
    for most in range(10, 1, -1):
        ticks = scale.ticks(most)
        labels = tick_labels(ticks)
        gaps = [scale.place(high) - scale.place(low) for low, high in pairwise(ticks)]
        if all(gap >= max(map(room, two)) for gap, two in zip(gaps, pairwise(labels), strict=True)):
            break
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FixedFormatter([_power(label) for label in labels]))
    is_fine = scale.is_log and scale.high / scale.low < 1e4
    axis.set_minor_locator(LogLocator(subs=range(2, 10)) if is_fine else NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _power(label: str) -> str:
    """`2e12` with a raised exponent."""
    factor, exponent, power = label.partition("e")
    if not exponent:
        return label
    return rf"$10^{{{power}}}$" if factor == "1" else rf"${factor}\times10^{{{power}}}$"
