"""A chart's points as a table: for readers who cannot see the chart, and for the script that shows exact figures."""

from collections.abc import Sequence

from markupsafe import Markup

from growctl.content.chart import Axis, Chart, Mark
from growctl.text.escaping import visible

INTERVAL = "95 % interval"


def data_table(chart: Chart) -> Markup:
    """The table of all points, those of each series below its name, and the list of vertical lines.

    The page hides it from view, but not from screen readers. The n-th row of cells is the n-th point of all series
    but guides.
    """
    columns = _columns(chart)
    head = Markup().join(Markup('<th scope="col">{}</th>').format(visible(name)) for name in columns)
    bodies = Markup().join(
        Markup('<tbody><tr><th scope="rowgroup" colspan="{}">{}</th></tr>{}</tbody>').format(
            len(columns), visible(series.name), Markup().join(_row(mark, chart, columns) for mark in series.marks)
        )
        for series in chart.series
        if series.marks and not series.is_guide
    )
    table = "<table><caption>{}. {}</caption><thead><tr>{}</tr></thead>{}</table>"
    return Markup('<div class="chart-data">{}{}</div>').format(
        Markup(table).format(visible(chart.title), visible(chart.summary), head, bodies), _rules(chart)
    )


def _row(mark: Mark, chart: Chart, columns: Sequence[str]) -> Markup:
    figures = figures_of(mark, chart)
    cells = Markup().join(Markup("<td>{}</td>").format(visible(figures.get(name, ""))) for name in columns)
    return Markup("<tr>{}</tr>").format(cells)


def figures_of(mark: Mark, chart: Chart) -> dict[str, str]:
    """The exact figures of a point by name: its facts, or its place on each axis if it has none."""
    facts = mark.facts or (
        (chart.y_axis.label, _exact(mark.y)),
        *((axis.label, _exact(mark.x[axis.key])) for axis in chart.x_axes if axis.key in mark.x),
    )
    figures: dict[str, str] = {}
    for name, value in facts:
        figures[name] = f"{figures[name]}; {value}" if name in figures else value
    if mark.interval and INTERVAL not in figures:
        figures[INTERVAL] = f"{_exact(mark.interval[0])} to {_exact(mark.interval[1])}"
    return figures


def _columns(chart: Chart) -> list[str]:
    marks = (mark for series in chart.series if not series.is_guide for mark in series.marks)
    return list(dict.fromkeys(name for mark in marks for name in figures_of(mark, chart)))


def _rules(chart: Chart) -> Markup:
    if not chart.rules:
        return Markup()
    items = Markup().join(
        Markup("<li>{}: {}</li>").format(visible(rule.label), visible(_place(rule.x, chart.x_axes)))
        for rule in chart.rules
    )
    return Markup("<p>Vertical lines</p><ul>{}</ul>").format(items)


def _place(x: dict[str, float], axes: Sequence[Axis]) -> str:
    return "; ".join(f"{axis.label} {_exact(x[axis.key])}" for axis in axes if axis.key in x)


def _exact(value: float) -> str:
    return f"{value:.6g}".replace("e+", "e")
