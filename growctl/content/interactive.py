"""Draws charts for pages: inline SVG that is complete without scripts, and one small script that makes it interactive.

The drawing fills whatever room it has: places are percentages, so lettering keeps its size on a phone. What depends on
the room (how many ticks, how labels of vertical lines stack) is there twice, for wide and narrow, and CSS picks one.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from markupsafe import Markup

from growctl.content.chart import Axis, Chart, Mark, Role, Series
from growctl.content.chart_data import data_table
from growctl.content.palette import COLOURS, GREY, Look, group_of, is_quiet, looks
from growctl.content.rule_labels import ROW_HEIGHT, PlacedLabel, place_labels, rows_used
from growctl.content.scale import Scale, is_drawable, tick_labels
from growctl.text.escaping import visible

_FILES = Path(__file__).parent
_COLOURS_CSS = "".join(
    f"--chart-{name}: light-dark({colour.light}, {colour.dark});"
    for name, colour in [*enumerate(COLOURS), ("grey", GREY)]
)
STYLE = f".chart {{ {_COLOURS_CSS} }}\n{(_FILES / 'chart.css').read_text()}"
"""The style sheet of all charts of a page."""
SCRIPT = (_FILES / "chart.js").read_text()
"""The script of all charts of a page; it may run before or after the page has loaded."""

_ROOM = {"wide": (8, 7, 520.0), "narrow": (5, 6, 270.0)}
"""For each layout: the most ticks of the x axis and of the y axis, and the least width of the plot in pixels."""
_RADII = {True: 5.5, False: 2.0}
"""Of the markers, in pixels: at the end of a stage or run, and on the way."""
_DRAWN_FIRST: tuple[Role, ...] = ("published", "plain", "control", "release", "ladder")
"""What is drawn later covers what was drawn before."""


def chart_html(chart: Chart, heading: str = "") -> Markup:
    """A chart as a `<figure>`; the page needs STYLE for it, and SCRIPT for what is interactive.

    Its title is not shown again if the `heading` above it says the same.
    """
    marks = [mark for series in chart.series if not series.is_guide for mark in series.marks if _has_room(mark, chart)]
    axes = [axis for axis in chart.x_axes if any(is_drawable(mark.x.get(axis.key), axis) for mark in marks)]
    drawing = _drawing(chart, axes, marks) if axes else Markup("<p>{}</p>").format(visible(chart.summary))
    return Markup('<figure class="chart" id="chart-{}"><figcaption{}>{}</figcaption>{}{}</figure>\n').format(
        chart.key,
        Markup(' class="chart-data"') if chart.title == heading else "",
        visible(chart.title),
        drawing,
        data_table(chart),
    )


def _drawing(chart: Chart, axes: Sequence[Axis], marks: Sequence[Mark]) -> Markup:
    return Markup('{}<div class="chart-box"><p class="chart-y">{}</p>{}{}</div>{}{}').format(
        _axis_choice(chart, axes),
        _axis_label(chart.y_axis),
        *_Plot(chart, axes, marks).parts(),
        _legend(chart),
        Markup('<div class="chart-tip" role="tooltip" hidden=""></div>'),
    )


def _axis_choice(chart: Chart, axes: Sequence[Axis]) -> Markup:
    """Radio buttons for the x axes, if there is a choice. Without the script they are not shown."""
    if len(axes) < 2:
        return Markup()
    radio = '<label><input type="radio" name="chart-{}-axis" value="{}"{}/>{}</label>'
    choices = (
        Markup(radio).format(chart.key, number, Markup(' checked=""') if not number else "", _axis_label(axis))
        for number, axis in enumerate(axes)
    )
    legend = Markup("<legend>Horizontal axis</legend>")
    return Markup('<fieldset class="chart-axes">{}{}</fieldset>').format(legend, Markup().join(choices))


def _legend(chart: Chart) -> Markup:
    """A button for each entry with its marker. The script lets it hide the entry's series."""
    drawn: dict[str, tuple[Series, Look]] = {}
    for series, look in zip(chart.series, looks(chart), strict=True):
        if series.entry not in drawn or drawn[series.entry][0].is_guide:
            drawn[series.entry] = series, look
    entries = (
        Markup(
            '<li><button type="button" data-entry="{}" aria-pressed="true" disabled="">'
            '<svg class="chart-swatch {}" width="34" height="16" aria-hidden="true">'
            '<line x1="0" x2="34" y1="8" y2="8"{}/>{}</svg>{}</button></li>'
        ).format(
            number,
            _classes(look, series),
            _stroke(look) if series.is_joined else Markup(' visibility="hidden"'),
            Markup('<use href="#{}" x="17" y="8"/>').format(_symbol(chart, look, True)) if _has_markers(series) else "",
            visible(entry),
        )
        for number, (entry, (series, look)) in enumerate(drawn.items())
    )
    return Markup('<ul class="chart-legend">{}</ul>').format(Markup().join(entries))


class _Plot:
    """The drawing itself, with the scale of each axis."""

    def __init__(self, chart: Chart, axes: Sequence[Axis], marks: Sequence[Mark]):
        self.chart, self.axes, self.looks = chart, axes, looks(chart)
        self.x_scales = [
            Scale.over((mark.x[axis.key] for mark in marks if is_drawable(mark.x.get(axis.key), axis)), axis.is_log)
            for axis in axes
        ]
        ends = [end for mark in marks for end in (mark.y, *(mark.interval or ())) if is_drawable(end, chart.y_axis)]
        self.y_scale = Scale.over(ends, chart.y_axis.is_log)
        if chart.y_limit and any(mark.y > chart.y_limit for series in chart.series for mark in series.marks):
            self.y_scale = replace(self.y_scale, high=max(chart.y_limit, *ends))  # lines end at the edge
        self.entries = {
            entry: number for number, entry in enumerate(dict.fromkeys(series.entry for series in chart.series))
        }
        rows = accumulate((0 if series.is_guide else len(series.marks) for series in chart.series), initial=0)
        self.first_rows = list(rows)

    def parts(self) -> tuple[Markup, Markup]:
        """The labels of the vertical lines, which stand above the plot, and the plot."""
        labels = {layout: self._placed_labels(width) for layout, (_, _, width) in _ROOM.items()}
        above = (
            Markup('<svg class="chart-rules chart-{}" width="100%" height="{}" aria-hidden="true">{}</svg>').format(
                layout,
                max(map(rows_used, by_axis)) * ROW_HEIGHT,
                self._for_each_axis([self._labels(placed, max(map(rows_used, by_axis))) for placed in by_axis]),
            )
            for layout, by_axis in labels.items()
        )
        plot = Markup(
            '<svg class="chart-plot" width="100%" role="img" aria-labelledby="chart-{0}-title" '
            'aria-describedby="chart-{0}-summary"><title id="chart-{0}-title">{1}</title>'
            '<desc id="chart-{0}-summary">{2}</desc><defs>{3}</defs>{4}{5}'
            '<circle class="chart-cursor" r="9" hidden=""/></svg>'
        ).format(
            self.chart.key, visible(self.chart.title), visible(self.chart.summary), self._symbols(), self._frame(),
            Markup().join(self._series(number) for number in self._drawing_order()),
        )  # fmt: skip
        return Markup().join(above), plot

    def _for_each_axis(self, parts: Sequence[Markup]) -> Markup:
        """A group for each x axis, of which the first is shown."""
        return Markup().join(
            Markup('<g data-axis="{}"{}>{}</g>').format(number, Markup(' hidden=""') if number else "", part)
            for number, part in enumerate(parts)
        )

    def _frame(self) -> Markup:
        """Grid, ticks and axis labels, and the vertical lines."""
        rules = [self._rules(axis, scale) for axis, scale in zip(self.axes, self.x_scales, strict=True)]
        layouts = (
            Markup('<g class="chart-{}">{}{}</g>').format(
                layout,
                self._y_ticks(y_ticks),
                self._for_each_axis([self._x_ticks(scale, x_ticks) for scale in self.x_scales]),
            )
            for layout, (x_ticks, y_ticks, _) in _ROOM.items()
        )
        names = self._for_each_axis(
            [
                Markup('<text class="chart-x" x="50%" y="100%" dy="40">{}</text>').format(_axis_label(axis))
                for axis in self.axes
            ]
        )
        base = Markup('<line class="chart-base" x1="0" x2="100%" y1="100%" y2="100%"/>')
        return Markup('<g aria-hidden="true">{}{}{}{}</g>').format(
            Markup().join(layouts), names, base, self._for_each_axis(rules)
        )

    def _x_ticks(self, scale: Scale, most: int) -> Markup:
        ticks = scale.ticks(most)
        tick = '<line x1="{0}" x2="{0}" y1="0" y2="100%"/><text class="chart-xt" x="{0}" y="100%" dy="18">{1}</text>'
        return Markup().join(
            Markup(tick).format(_percent(scale.place(value)), label)
            for value, label in zip(ticks, tick_labels(ticks), strict=True)
        )

    def _y_ticks(self, most: int) -> Markup:
        ticks = self.y_scale.ticks(most)
        tick = '<line x1="0" x2="100%" y1="{0}" y2="{0}"/><text class="chart-yt" y="{0}" dx="-8" dy="4">{1}</text>'
        return Markup().join(
            Markup(tick).format(self._height(value), label)
            for value, label in zip(ticks, tick_labels(ticks), strict=True)
        )

    def _rules(self, axis: Axis, scale: Scale) -> Markup:
        line = '<line class="chart-rule {1}" x1="{0}" x2="{0}" y1="0" y2="100%"/>'
        places = {
            (_percent(scale.place(rule.x[axis.key])), self._class_of(rule.group))
            for rule in self.chart.rules
            if is_drawable(rule.x.get(axis.key), axis) and 0 <= scale.place(rule.x[axis.key]) <= 1
        }
        return Markup().join(Markup(line).format(*place) for place in sorted(places))

    def _placed_labels(self, width: float) -> list[list[PlacedLabel]]:
        """For each x axis, the labels of the vertical lines on a plot of `width` pixels."""
        return [
            place_labels(
                [
                    (scale.place(rule.x[axis.key]), visible(rule.label), self._class_of(rule.group))
                    for rule in self.chart.rules
                    if is_drawable(rule.x.get(axis.key), axis)
                ],
                width,
            )
            for axis, scale in zip(self.axes, self.x_scales, strict=True)
        ]

    def _labels(self, labels: Sequence[PlacedLabel], rows: int) -> Markup:
        drawn = (
            '<line class="chart-rule {1}" x1="{0}" x2="{0}" y1="{2}" y2="100%"/>'
            '<text x="{0}" y="{3}" dx="{4}" text-anchor="{5}">{6}</text>'
        )
        return Markup().join(
            Markup(drawn).format(
                _percent(label.place),
                label.style,
                (top := (rows - 1 - label.row) * ROW_HEIGHT),
                top + ROW_HEIGHT - 4,
                -5 if label.is_left else 5,
                "end" if label.is_left else "start",
                label.text,
            )
            for label in labels
        )

    def _symbols(self) -> Markup:
        """The markers that the series use, large and small."""
        used = {_symbol(self.chart, look, is_end): (look, is_end) for look in self.looks for is_end in (True, False)}
        return Markup().join(
            Markup('<path id="{}" d="{}" transform="scale({})"/>').format(name, look.marker.path, _RADII[is_end])
            for name, (look, is_end) in used.items()
        )

    def _drawing_order(self) -> list[int]:
        return sorted(range(len(self.looks)), key=lambda number: _DRAWN_FIRST.index(self.chart.series[number].role))

    def _series(self, number: int) -> Markup:
        series, look = self.chart.series[number], self.looks[number]
        lines = (
            self._for_each_axis([self._line(series, look, axis) for axis in range(len(self.axes))])
            if series.is_joined and len(series.marks) > 1
            else ""
        )
        marks = () if series.is_guide else tuple(enumerate(series.marks, self.first_rows[number]))
        kind = "chart-guide" if series.is_guide else "chart-series"
        about = Markup(' data-series="{}" data-entry="{}" data-name="{}"').format(
            number, self.entries[series.entry], visible(series.name)
        )
        if self._is_line_alone(series):
            symbol = _symbol(self.chart, look, is_end=False)
            about += Markup(' data-rows="{}" data-symbol="{}"').format(self.first_rows[number], symbol)
            marks = tuple((row, mark) for row, mark in marks if mark.is_end)
        return Markup('<g class="{} {}"{}>{}{}</g>').format(
            kind,
            _classes(look, series),
            about,
            lines,
            Markup().join(self._mark(mark, look, row) for row, mark in marks),
        )

    def _is_line_alone(self, series: Series) -> bool:
        """Whether the line has all points, so that the script can find them: their marks are not to be seen."""
        return is_quiet(series) and all(
            is_drawable(mark.y, self.chart.y_axis)
            and all(is_drawable(mark.x.get(axis.key), axis) for axis in self.axes)
            for mark in series.marks
        )

    def _line(self, series: Series, look: Look, number: int) -> Markup:
        """The line through the marks of a series, in a square of 1000 units that is stretched over the plot."""
        axis, scale = self.axes[number], self.x_scales[number]
        points = [
            f"{1000 * scale.place(mark.x[axis.key]):.1f} {1000 - 1000 * self.y_scale.place(mark.y):.1f}"
            for mark in series.marks
            if is_drawable(mark.x.get(axis.key), axis) and is_drawable(mark.y, self.chart.y_axis)
        ]
        if not points:
            return Markup()
        return Markup(
            '<svg class="chart-lines" viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%">'
            '<polyline points="{}"{}/></svg>'
        ).format(" ".join(points), _stroke(look))

    def _mark(self, mark: Mark, look: Look, row: int) -> Markup:
        """A point; `row` is the row of the table that has its figures."""
        places = [
            _percent(scale.place(mark.x[axis.key])) if is_drawable(mark.x.get(axis.key), axis) else ""
            for axis, scale in zip(self.axes, self.x_scales, strict=True)
        ]
        if not any(places) or not _has_room(mark, self.chart):
            return Markup()
        kind = "chart-mark chart-end" if mark.is_end else "chart-mark"
        shown = Markup(' x="{}"').format(places[0]) if places[0] else Markup(' x="0" hidden=""')
        about = Markup(' data-x="{}"').format(",".join(places)) if len(places) > 1 else Markup()
        about += Markup(' data-row="{}"').format(row)
        use = Markup('<use href="#{}"{} y="{}"{}/>')
        symbol, height = _symbol(self.chart, look, mark.is_end), self._height(mark.y)
        if not mark.interval or not all(is_drawable(end, self.chart.y_axis) for end in mark.interval):
            return use.format(symbol, Markup(' class="{}"{}{}').format(kind, shown, about), height, "")
        return Markup('<svg class="{}" overflow="visible"{}{} data-y="{}">{}{}</svg>').format(
            kind, shown, about, height, self._whisker(mark.interval), use.format(symbol, "", height, "")
        )

    def _whisker(self, interval: tuple[float, float]) -> Markup:
        low, high = map(self._height, interval)
        cap = '<line class="chart-whisker" x1="-4" x2="4" y1="{0}" y2="{0}"/>'
        line = '<line class="chart-whisker" x1="0" x2="0" y1="{}" y2="{}"/>'
        return Markup(line).format(low, high) + Markup(cap).format(low) + Markup(cap).format(high)

    def _height(self, value: float) -> str:
        return _percent(1 - self.y_scale.place(value))

    def _class_of(self, group: str) -> str:
        """The colour of the first series of a group."""
        for series, look in zip(self.chart.series, self.looks, strict=True):
            if group and group_of(series) == group:
                return _colour_class(look)
        return "chart-ink"


def _has_room(mark: Mark, chart: Chart) -> bool:
    """Whether a point can be drawn, as far as its height goes."""
    return is_drawable(mark.y, chart.y_axis) and (chart.y_limit is None or mark.y <= chart.y_limit)


def _has_markers(series: Series) -> bool:
    return not series.is_guide and (not is_quiet(series) or any(mark.is_end for mark in series.marks))


def _classes(look: Look, series: Series) -> str:
    kind = f"{_colour_class(look)} chart-{series.role}{' chart-hollow' if look.is_hollow else ''}"
    return f"{kind} chart-quiet" if is_quiet(series) and not series.is_guide else kind


def _colour_class(look: Look) -> str:
    return f"chart-c{look.number}" if look.number >= 0 else "chart-grey"


def _stroke(look: Look) -> Markup:
    dashes = Markup(' stroke-dasharray="{}"').format(" ".join(map(str, look.line.dashes))) if look.line.dashes else ""
    return Markup(' class="chart-line" stroke-width="{}"{}').format(look.line.width, dashes)


def _symbol(chart: Chart, look: Look, is_end: bool) -> str:
    """The id of a marker."""
    return f"{chart.key}-{look.marker.name}{'-end' if is_end else ''}"


def _axis_label(axis: Axis) -> str:
    return visible(axis.label[:1].upper() + axis.label[1:])


def _percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"
