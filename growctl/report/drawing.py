"""Draws charts: by matplotlib for pages and papers, by plotly for a page whose charts show each point's figures."""

import io
import json
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axis import Axis as DrawnAxis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from growctl.report.chart import COLOURS, GREY, Axis, Chart, FigureFormat, FigureStyle, Look, Mark, Series, looks
from growctl.text.escaping import visible
from growctl.text.formatting import scientific, short_count
from growctl.text.section import Drawn
from model.errors import UserError

INK, PAPER = "#1a1f26", "#ffffff"
"""What a page replaces by its own colours of text and background."""
_PAGE_COLOURS = {INK: "currentColor", PAPER: "var(--paper)", GREY.light: "var(--grey)"} | {
    colour.light: f"var(--c{number})" for number, colour in enumerate(COLOURS)
}
_SYMBOLS = {"o": "circle", "^": "triangle-up", "h": "hexagon", "s": "square", "P": "cross", "X": "x", "D": "diamond"}
_SYMBOLS |= {"d": "diamond-tall", "*": "star", "v": "triangle-down", ">": "triangle-right", "<": "triangle-left"}
"""plotly's names of matplotlib's markers."""


@dataclass(frozen=True)
class Picture(Drawn):
    """A finished drawing for a page."""

    key: str
    title: str
    summary: str
    svg: Markup


@dataclass(frozen=True)
class _Style:
    """Inches, points, and how strong lines are."""

    width: float
    height: float
    font: float
    strength: float
    settings: dict[str, Any]


_SERIF = {"font.family": ["STIXGeneral", "DejaVu Sans"], "mathtext.fontset": "stix", "figure.dpi": 600}
_STYLES = {
    "page": _Style(4.6, 3.1, 9.5, 0.8, {"svg.fonttype": "none"}),
    "screen": _Style(8.0, 5.0, 10, 1.0, {"figure.dpi": 200}),
    "paper": _Style(3.25, 2.6, 8, 0.6, _SERIF),
    "paper-wide": _Style(6.75, 2.6, 8, 0.6, _SERIF),
}
_NO_DATE: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


@contextmanager
def _settings(style: str, salt: str = "growctl") -> Iterator[None]:
    """matplotlib's settings for a style. Equal charts make equal files, with fonts that journals accept."""
    given = _STYLES[style]
    settings: dict[Any, Any] = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": salt}
    settings |= {"font.size": given.font, "axes.linewidth": 0.8 * given.strength, **given.settings}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a name in a script that no font here has
        yield


def figure_file(chart: Chart, kind: FigureFormat, style: FigureStyle = "screen", axis: Axis | None = None) -> bytes:
    """The content of a file with `chart`, drawn on `axis`, or on its first x axis."""
    buffer = io.BytesIO()
    with _settings(style):
        _draw(chart, style, axis or chart.x_axes[0]).savefig(buffer, format=kind, metadata=_NO_DATE[kind])
    return buffer.getvalue()


def picture(chart: Chart) -> Picture:
    """The chart on its first x axis, for a page."""
    with _settings("page", chart.key):
        svg = page_svg(_draw(chart, "page", chart.x_axes[0]), chart.key)
    return Picture(chart.key, chart.title, chart.summary, svg)


def page_svg(figure: Figure, key: str) -> Markup:
    """The figure as a small `<svg>` element, in the colours of a light or a dark page. `key` makes its ids unique."""
    figure.patch.set_alpha(0.0)
    for axes in figure.axes:
        axes.patch.set_alpha(0.0)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    used = {name: f"{key}-{number}" for number, name in enumerate(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))}
    svg = re.sub(r' id="([^"]*)"', lambda m: f' id="{used[m[1]]}"' if m[1] in used else "", svg)
    svg = re.sub(r'(?:xlink:)?href="#([^"]*)"', lambda m: f'href="#{used[m[1]]}"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", lambda m: f"url(#{used[m[1]]})", svg)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"| (?:width|height)="[\d.]+pt"|<style.*?</style>', "", svg, flags=re.DOTALL)
    svg = re.sub(r"(font: )?([\d.]+px) '[^;\"]*(;|\")", r"font-size: \2\3", svg)
    svg = re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), svg)
    svg = re.sub(r"#[0-9a-f]{6}", lambda m: _PAGE_COLOURS.get(m[0], m[0]), svg)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    return Markup(re.sub(r"> <", "><", svg).replace("<svg ", '<svg aria-hidden="true" ', 1))


def _draw(chart: Chart, style: str, axis: Axis) -> Figure:
    sizes = _STYLES[style]
    figure = Figure(figsize=(sizes.width, sizes.height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(INK)
    axes.tick_params(colors=INK)
    axes.set_xlabel(_literal(axis.label), color=INK)
    room = int(sizes.height * 72 / sizes.font / 0.56)
    axes.set_ylabel("\n".join(textwrap.wrap(_literal(chart.y_axis.label), room)), color=INK)
    if style == "screen":
        axes.set_title(_literal(chart.title), color=INK, loc="left", weight="bold")
    drawn = list(zip(chart.series, looks(chart), strict=True))
    seen = [mark for series, _ in drawn for mark in chart.marks_on(series, axis)]
    seen = [mark for mark in seen if mark.y <= (chart.y_limit or math.inf)]
    if not seen:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "nothing measured yet", transform=axes.transAxes, ha="center", color=INK)
    for above, role in enumerate(("published", "plain", "control", "release", "ladder"), 2):
        for series, look in drawn:
            if series.role == role and seen:
                _draw_series(axes, chart.marks_on(series, axis), axis, series, look, sizes.strength, above)
    if seen:
        axes.set_xscale("log" if axis.is_log else "linear")
        axes.set_yscale("log" if chart.y_axis.is_log else "linear")
        axes.set_xlim(*_limits([mark.x[axis.key] for mark in seen], axis.is_log))
        low, high = _limits([mark.y for mark in seen], chart.y_axis.is_log)
        axes.set_ylim(low, chart.y_limit or high)
        _set_ticks(axes.xaxis, axes.get_xlim(), axis.is_log, 4 if style == "paper" else 6)
        _set_ticks(axes.yaxis, axes.get_ylim(), chart.y_axis.is_log, 6)
        _draw_rules(axes, chart, axis, {series.colour_group: look.colour.light for series, look in drawn})
    _draw_legend(figure, drawn, sizes)
    return figure


def _draw_series(
    axes: Any, marks: Sequence[Mark], axis: Axis, series: Series, look: Look, strength: float, above: int
) -> None:
    colour, places = look.colour.light, [(mark.x[axis.key], mark.y) for mark in marks]
    if series.is_joined and places:
        width = look.width * strength
        dashes = (0, look.dashes) if look.dashes else "solid"
        axes.plot(*zip(*places, strict=True), color=colour, linewidth=width, linestyle=dashes, alpha=0.9, zorder=above)
    for mark, place in zip(marks, places, strict=True):
        if mark.is_end or not series.is_joined or series.role == "published":
            axes.plot(*place, **_marker(look, strength), zorder=above + 5)
    dots = [place for mark, place in zip(marks, places, strict=True) if not mark.is_end]
    if series.is_joined and not series.hides_dots and dots:
        axes.plot(*zip(*dots, strict=True), "o", color=colour, ms=2.6 * strength, mew=0, zorder=above)


def _marker(look: Look, strength: float) -> dict[str, Any]:
    face, edge, width = (PAPER, look.colour.light, 1.6) if look.is_hollow else (look.colour.light, PAPER, 0.6)
    return {"marker": look.marker, "ms": 8 * strength, "mfc": face, "mec": edge, "mew": width * strength, "ls": "none"}


def _limits(values: Sequence[float], is_log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if is_log:
        room = (high / low) ** 0.05 if high > low else 1.5
        return low / room, high * room
    room = 0.05 * (high - low) or abs(high) / 2 or 1.0
    return low - room, high + room


def _set_ticks(axis: DrawnAxis, limits: tuple[float, float], is_log: bool, most: int) -> None:
    ratio = limits[1] / limits[0] if is_log else 1.0
    powers = LogLocator(subs=(1,) if ratio > 300 else (1, 3) if ratio > 30 else (1, 2, 5), numticks=most + 1)
    axis.set_major_locator(powers if ratio > 5 else MaxNLocator(most))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axis.set_minor_locator(NullLocator())


def _tick(value: float) -> str:
    """0.05, 250, 20k, 1.5M; 5e11 and 1e-5 where the number would be long."""
    if value and (abs(value) >= 1e9 or abs(value) < 1e-3):
        return re.sub(r"\.?0*e", "e", scientific(value)).replace("e-0", "e-")
    return short_count(value) if abs(value) >= 1000 else f"{value:.4g}"


def _draw_rules(axes: Any, chart: Chart, axis: Axis, colours: dict[str, str]) -> None:
    """Lines that nearly coincide share a label."""
    transform, labelled = axes.get_xaxis_transform(), set()
    for rule in chart.rules:
        if not axis.has_place(x := rule.x.get(axis.key)):
            continue
        colour = colours.get(rule.group, INK)
        axes.axvline(x, color=colour, linestyle=(0, (1, 2)), linewidth=1.0, alpha=0.8, zorder=1)
        place = round(20 * axes.transAxes.inverted().transform(axes.transData.transform((x, 1.0)))[0])
        if 0 <= place <= 20 and place not in labelled:
            labelled.add(place)
            text = textwrap.shorten(_literal(rule.label), 30, placeholder="...")
            how: dict[str, Any] = {"rotation": 90, "ha": "right", "va": "top", "fontsize": "small", "color": INK}
            axes.text(x, 0.99, text, **how, transform=transform)


def _draw_legend(figure: Figure, drawn: Sequence[tuple[Series, Look]], sizes: _Style) -> None:
    """The entries below the axes, in as many columns as have room."""
    entries: dict[str, Line2D] = {}
    for series, look in drawn:
        line = {"color": look.colour.light, "linewidth": look.width * sizes.strength if series.is_joined else 0}
        marker = _marker(look, sizes.strength)
        entries[series.entry] = Line2D([], [], **(marker | line | {"ls": (0, look.dashes) if look.dashes else "-"}))
    if not entries:
        return
    size = sizes.font * 0.9
    characters = int(sizes.width * 72 / size / 0.56)
    columns = max(1, min(len(entries), characters // (max(map(len, entries)) + 8)))
    names = ["\n".join(textwrap.wrap(_literal(name), characters - 8)) for name in entries]
    lines = sum(name.count("\n") + 1 for name in names) / columns
    figure.set_figheight(sizes.height + math.ceil(lines) * size * 1.3 / 72)
    how: dict[str, Any] = {"loc": "outside lower left", "ncols": columns, "labelcolor": INK, "frameon": False}
    figure.legend(list(entries.values()), names, **how, handlelength=2.6, labelspacing=0.3, borderpad=0.2)


def _literal(text: str) -> str:
    """`text` as matplotlib shows it: on one line, without control codes, with dollar signs that start no formula."""
    return re.sub(r"\s+", " ", visible(text)).replace("$", r"\$")


def interactive_page(title: str, charts: Sequence[Chart]) -> str:
    """One offline HTML file with the charts as plotly draws them: figures at each point, zoom, a choice of the x axis.

    Raises UserError if plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise UserError("--interactive needs plotly: pip install 'growctl[interactive]'") from error
    words = (
        (number, escape(visible(chart.title)), escape(visible(chart.summary))) for number, chart in enumerate(charts)
    )
    divs = [f'<h2>{name}</h2><p>{summary}</p><div id="chart-{number}"></div>' for number, name, summary in words]
    plots = json.dumps(list(map(_plotly, charts)), allow_nan=False).replace("</", r"<\/")
    return _INTERACTIVE.format(title=escape(visible(title)), charts="".join(divs), js=get_plotlyjs(), plots=plots)


_INTERACTIVE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>:root {{ color-scheme: light dark }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 70rem; margin: 1.5rem auto; padding: 0 1rem }}</style></head>
<body><main><h1>{title}</h1>{charts}</main><script>{js}</script><script>
const dark = matchMedia("(prefers-color-scheme: dark)").matches, ink = dark ? "#e6e9ed" : "#1a1f26";
{plots}.forEach(({{ data, layout }}, number) => {{
  for (const trace of data) trace.line.color = trace.marker.color = trace.meta[dark ? 1 : 0];
  const axis = {{ gridcolor: dark ? "#363c45" : "#d5dae0" }}, none = "transparent";
  Object.assign(layout.xaxis, axis); Object.assign(layout.yaxis, axis);
  Object.assign(layout, {{ paper_bgcolor: none, plot_bgcolor: none, font: {{ color: ink }} }});
  Plotly.newPlot("chart-" + number, data, layout, {{ responsive: true, displaylogo: false }});
}});
</script></body></html>
"""


def _plotly(chart: Chart) -> dict[str, Any]:
    """The chart as plotly's JSON. Each x axis of the choice replaces the places of all marks."""
    traces: list[dict[str, Any]] = []
    places: dict[str, list[list[float | None]]] = {axis.key: [] for axis in chart.x_axes}
    named: set[str] = set()
    for series, look in zip(chart.series, looks(chart), strict=True):
        marks = [mark for mark in series.marks if chart.y_axis.has_place(mark.y)]
        for axis in chart.x_axes:
            places[axis.key].append([x if axis.has_place(x := mark.x.get(axis.key)) else None for mark in marks])
        facts = ["<br>".join(f"{escape(name)}: {escape(text)}" for name, text in mark.facts) for mark in marks]
        sizes = [9 if mark.is_end or not series.is_joined else 0 if series.hides_dots else 4 for mark in marks]
        mode = "lines+markers" if series.is_joined else "markers"
        dash = ",".join(f"{length}px" for length in look.dashes) or "solid"
        name, entry = str(escape(visible(series.name))), str(escape(visible(series.entry)))
        symbol = _SYMBOLS[look.marker] + ("-open" if look.is_hollow else "")
        trace: dict[str, Any] = {"type": "scatter", "mode": mode, "y": [mark.y for mark in marks]}
        trace |= {"x": places[chart.x_axes[0].key][-1], "marker": {"size": sizes, "symbol": symbol}}
        trace |= {"name": entry, "legendgroup": entry, "showlegend": entry not in named, "meta": list(look.colour)}
        trace |= {"text": facts, "hovertemplate": f"{name}<br>%{{text}}<extra></extra>"}
        traces.append(trace | {"line": {"dash": dash, "width": look.width}})
        named.add(entry)

    def scale(axis: Axis) -> dict[str, Any]:
        return {"title": {"text": visible(axis.label)}, "type": "log" if axis.is_log else "linear"}

    def rules(axis: Axis) -> list[dict[str, Any]]:
        line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"dash": "dot", "width": 1, "color": "gray"}}
        seen = [(x, rule.label) for rule in chart.rules if axis.has_place(x := rule.x.get(axis.key))]
        return [line | {"x0": x, "x1": x, "label": {"text": visible(text), "textposition": "end"}} for x, text in seen]

    def change(axis: Axis) -> dict[str, Any]:
        return {"xaxis.title.text": visible(axis.label), "xaxis.type": scale(axis)["type"], "shapes": rules(axis)}

    first = chart.x_axes[0]
    layout: dict[str, Any] = {"xaxis": scale(first), "yaxis": scale(chart.y_axis), "shapes": rules(first)}
    layout |= {"hovermode": "closest", "margin": {"t": 60}}
    ends = [mark.y for series in chart.series for mark in series.marks if chart.y_axis.has_place(mark.y)]
    if chart.y_limit and ends:
        limits = (min(ends) / 1.05, chart.y_limit)
        layout["yaxis"]["range"] = list(map(math.log10, limits)) if chart.y_axis.is_log else list(limits)
    if len(chart.x_axes) > 1:
        buttons = [
            {"label": axis.label, "method": "update", "args": [{"x": places[axis.key]}, change(axis)]}
            for axis in chart.x_axes
        ]
        layout["updatemenus"] = [{"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.12, "yanchor": "bottom"}]
    return {"data": traces, "layout": layout}
