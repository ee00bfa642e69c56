"""Draws charts by matplotlib, for pages and papers."""

import io
import math
import re
import textwrap
import warnings
from typing import Any

import matplotlib
from matplotlib.axis import Axis as DrawnAxis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from growctl.report.chart import ROLES, Chart, FigureFormat, looks
from growctl.text.escaping import visible
from growctl.text.formatting import scientific, short_count

INK, PAPER = "#1a1f26", "#ffffff"

_WIDTH, _HEIGHT = 4.8, 3.2
"""Inches; the legend below makes the chart higher."""
_LINE_INCHES, _LINE_CHARACTERS = 0.155, 70
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "figure.dpi": 300,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": "small",
    "legend.handlelength": 2.6,
    "axes.linewidth": 0.7,
    "pdf.fonttype": 42,
    "svg.hashsalt": "growctl",
}
"""With fonts that journals accept."""
NO_DATE: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def figure_file(chart: Chart, kind: FigureFormat) -> bytes:
    """The content of a file with `chart`. Equal charts make equal files."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a name in a script that no font here has
        _draw(chart).savefig(buffer, format=kind, metadata=NO_DATE[kind])
    return buffer.getvalue()


def _draw(chart: Chart) -> Figure:
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    axes = figure.add_subplot(xlabel=_literal(chart.x_axis.label), title=_literal(chart.title))
    axes.set_ylabel(textwrap.fill(_literal(chart.y_axis.label), 42))
    colours, entries = dict[str, str](), dict[str, Line2D]()
    for series, colour, shape in looks(chart):
        colours[series.group] = colour
        marks = chart.marks_of(series)
        xs, ys = [mark.x for mark in marks], [mark.y for mark in marks]
        are_ends = [mark.is_end for mark in marks]
        face, edge, width = (PAPER, colour, 1.3) if series.role == "release" else (colour, PAPER, 0.5)
        marker: dict[str, Any] = {"marker": shape, "ms": 6.4, "mfc": face, "mec": edge, "mew": width}
        marker["markevery"] = are_ends
        name = textwrap.fill(_literal(series.label), _LINE_CHARACTERS)
        [entries[name]] = axes.plot(xs, ys, color=colour, **marker, **ROLES[series.role][1])
        axes.plot(xs, ys, ls="none", zorder=5, **marker)  # above the lines of others: these are to be compared
        if not series.hides_dots:
            axes.plot(xs, ys, "o", color=colour, ms=2.1, mew=0, markevery=[not is_end for is_end in are_ends])
    if any(chart.marks_of(series) for series in chart.series):
        axes.set(xscale="log" if chart.x_axis.is_log else "linear", yscale="log" if chart.y_axis.is_log else "linear")
        axes.autoscale_view()
        axes.autoscale(False)
        _set_ticks(axes.xaxis, axes.get_xlim(), chart.x_axis.is_log)
        _set_ticks(axes.yaxis, axes.get_ylim(), chart.y_axis.is_log)
        _draw_rules(axes, chart, colours)
    else:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "nothing measured yet", transform=axes.transAxes, ha="center")
    if entries:  # below the axes, in as many columns as have room
        columns = max(1, min(len(entries), _LINE_CHARACTERS // (max(map(len, entries)) + 6)))
        num_lines = sum(name.count("\n") + 1 for name in entries) / columns
        figure.set_figheight(_HEIGHT + math.ceil(num_lines) * _LINE_INCHES)
        names = list(reversed(entries))
        figure.legend([entries[name] for name in names], names, loc="outside lower left", ncols=columns)
    return figure


def _set_ticks(axis: DrawnAxis, limits: tuple[float, float], is_log: bool) -> None:
    ratio = limits[1] / limits[0] if is_log else 1.0
    powers = LogLocator(subs=(1,) if ratio > 300 else (1, 3) if ratio > 30 else (1, 2, 5), numticks=7)
    axis.set_major_locator(powers if ratio > 5 else MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axis.set_minor_locator(NullLocator())


def _tick(value: float) -> str:
    """0.05, 250, 20k, 1.5M; 5e11 and 1e-5 where the number would be long."""
    if value and (abs(value) >= 1e9 or abs(value) < 1e-3):
        return re.sub(r"\.?0*e", "e", scientific(value)).replace("e-0", "e-")
    return short_count(value) if abs(value) >= 1000 else f"{value:.4g}"


def _draw_rules(axes: Any, chart: Chart, colours: dict[str, str]) -> None:
    """Lines that say the same share a label."""
    labelled = set()
    for rule in chart.rules:
        if chart.x_axis.has_place(rule.x):
            axes.axvline(rule.x, color=colours.get(rule.group, INK), ls=(0, (1, 2)), lw=1.0, alpha=0.8, zorder=1)
            text = "" if rule.label in labelled else textwrap.shorten(_literal(rule.label), 30, placeholder="...")
            how: dict[str, Any] = {"rotation": 90, "ha": "right", "va": "top", "fontsize": "small"}
            axes.text(rule.x, 0.99, text, **how, transform=axes.get_xaxis_transform())
            labelled.add(rule.label)


def _literal(text: str) -> str:
    """`text` as matplotlib shows it: on one line, without control codes, with dollar signs that start no formula."""
    return re.sub(r"\s+", " ", visible(text)).replace("$", r"\$")
