"""Figures show all of a chart, legibly, on screens and in papers, in every format and with their fonts."""

import re
import zlib
from dataclasses import replace
from functools import cache

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from growctl.content.chart import Chart, Mark, Role, Rule, Series
from growctl.content.drawing import draw, figure_file
from growctl.content.formats import FIGURE_FORMATS, FIGURE_STYLES, FigureFormat, FigureStyle
from tests.growctl.content.charts import HOURS, chart, mark, series

ROLES: tuple[Role, ...] = ("ladder", "control", "release")


def four_ladders() -> Chart:
    """Four ladders with two kinds of controls and a release each, which grow at almost the same cost."""
    found, rules = [], []
    for number, name in enumerate(("small", "a-ladder-with-quite-a-long-name", "wide", "plateau")):
        cost = 10 ** (12 + 0.05 * number)
        ladder = [mark(cost * step, 30 / step - number, 0.01 * step, step in (4, 8)) for step in range(1, 9)]
        found.append(series(name, *ladder, group=name))
        found.append(
            series(
                f"{name}, release", mark(cost * 5, 7.0), mark(cost * 6, 6.0, is_end=True), role="release", group=name
            )
        )
        for kind in ("tokenformer-scratch", "single-jump"):
            ends = [mark(cost * step, 40 / step, 0.02 * step, is_end=True) for step in (4, 8, 16)]
            found.append(series(f"{name}: {kind}", *ends, role="control", group=f"{name}: {kind}"))
        rules.append(Rule({"flops": cost * 4}, f"grown to {number + 2}M", name))
    return chart(*found, rules=tuple(rules))


@cache
def drawn(style: FigureStyle) -> Figure:
    """The four ladders, drawn once for all tests."""
    return draw(four_ladders(), style)


def texts(figure: Figure) -> list[Text]:
    """The texts that a reader sees."""
    figure.draw_without_rendering()
    return [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text() and text.get_visible()]


@pytest.mark.parametrize("style", FIGURE_STYLES)
@pytest.mark.slow
def test_no_text_of_four_ladders_covers_another_or_leaves_the_figure(style: FigureStyle) -> None:
    figure = drawn(style)
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    boxes = [(text, box) for text, box in boxes if box.width > 1]
    assert len(boxes) > 20
    width, height = figure.bbox.width, figure.bbox.height
    out = [text for text, box in boxes if box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1]
    assert not out
    for number, (text, box) in enumerate(boxes):
        covered = [other for other, there in boxes[:number] if box.shrunk(0.9, 0.9).overlaps(there.shrunk(0.9, 0.9))]
        assert not covered, f"{text} covers {covered}"


@pytest.mark.parametrize(("style", "inches"), [("paper", 3.25), ("paper-wide", 6.75)])
def test_a_figure_for_a_paper_has_the_width_of_its_columns_no_title_and_letters_of_8_points(
    style: FigureStyle, inches: float
) -> None:
    figure = drawn(style)
    assert figure.get_figwidth() == inches
    assert {text.get_fontsize() for text in texts(figure)} == {8.0}
    assert not figure.axes[0].get_title(loc="left")
    assert drawn("screen").axes[0].get_title(loc="left") == "Compute against perplexity"


def test_series_of_a_role_have_different_markers_so_that_greyscale_tells_them_apart() -> None:
    figure = drawn("paper")
    ends = [line for line in figure.axes[0].lines if line.get_linestyle() == "None" and line.get_markersize() > 3]
    looks = [(line.get_marker(), line.get_color()) for line in ends]
    assert len(set(looks)) == len(looks) == 16
    by_role = [[marker for marker, _ in looks[place::4]] for place in range(4)]
    assert all(len(set(markers)) == 3 for markers in by_role)


def test_the_frame_ends_at_the_limit_and_follows_what_is_left() -> None:
    one = replace(chart(series("a", mark(1e12, 400), mark(1e13, 30), mark(1e14, 20, is_end=True))), y_limit=40.0)
    axes = draw(one).axes[0]
    assert axes.get_ylim()[1] < 50
    assert axes.get_xlim()[0] > 5e12


def test_a_published_series_is_hollow_and_a_guide_has_no_markers() -> None:
    published = series("paper", mark(1e12, 30), mark(1e13, 20), role="published")
    guide = replace(series("budgets", mark(1e12, 29), mark(1e13, 19), role="control"), is_guide=True)
    lines = draw(chart(published, guide)).axes[0].lines
    marked = [line for line in lines if line.get_marker() not in ("None", "")]
    assert {line.get_markerfacecolor() for line in marked if len(np.asarray(line.get_xdata()))} == {"white"}
    legend = draw(chart(published, guide)).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["paper"]


def test_an_interval_is_drawn_from_its_low_to_its_high_end() -> None:
    mean = Mark({"flops": 1e12}, 20.0, (("a", "b"),), interval=(18.0, 23.0), is_end=True)
    axes = draw(chart(Series("mean", (mean,), "ladder", is_joined=False))).axes[0]
    [bar] = axes.collections
    assert [point[1] for point in bar.get_segments()[0]] == pytest.approx([18.0, 23.0])  # type: ignore[attr-defined]


def test_series_that_share_an_entry_are_in_the_legend_once_even_without_marks() -> None:
    one = replace(series("seed-0", mark(1e12, 30)), label="quick, 2 seeds")
    two = replace(series("seed-1"), label="quick, 2 seeds")
    legend = draw(chart(one, two, series("not begun"))).legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["quick, 2 seeds", "not begun"]


def test_another_axis_leaves_out_the_marks_that_lack_it() -> None:
    one = chart(series("a", mark(1e12, 30, hours=0.5, is_end=True), mark(1e13, 20, is_end=True)))
    figure = draw(one, axis=HOURS)
    assert figure.axes[0].get_xlabel() == HOURS.label
    assert [np.asarray(line.get_xdata()).tolist() for line in figure.axes[0].lines if line.get_markersize() > 5][
        -1
    ] == [0.5]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_values_without_a_place_on_a_logarithmic_axis_are_left_out(value: float) -> None:
    assert draw(chart(series("a", mark(value, 30), mark(1e12, value), mark(1e12, 20, is_end=True))))
    assert draw(chart(series("a", mark(1e12, value)))).axes[0].texts[0].get_text() == "nothing measured yet"


def test_a_chart_without_series_says_so() -> None:
    assert "nothing measured yet" in [text.get_text() for text in texts(draw(chart()))]


@pytest.mark.parametrize("name", ["$x$ \\frac{a", "<script>&", "a\nb\x1b[31m", "名前 🙂", "x" * 300])
def test_a_name_is_drawn_as_it_is_without_formulas_or_warnings(name: str, recwarn: pytest.WarningsRecorder) -> None:
    one = chart(series(name, mark(1e12, 30, is_end=True)), rules=(Rule({"flops": 1e12}, name),))
    assert figure_file(one, "svg", "paper").startswith(b"<?xml")
    assert not recwarn.list


def test_a_pdf_embeds_its_fonts_as_truetype() -> None:
    data = figure_file(four_ladders(), "pdf", "paper")
    assert data.startswith(b"%PDF")
    streams = [zlib.decompress(found) for found in re.findall(rb"stream\r?\n(x.*?)\r?\nendstream", data, re.DOTALL)]
    whole = data + b"".join(streams)
    assert b"/FontFile2" in whole
    assert b"/Type3" not in whole


def test_an_svg_needs_no_fonts_and_nothing_from_elsewhere() -> None:
    text = figure_file(four_ladders(), "svg").decode()
    assert "<text" not in text
    assert "font-family" not in text
    assert not re.search(r'(?:href|src)="(?!#)', text)


@pytest.mark.parametrize("kind", FIGURE_FORMATS)
@pytest.mark.slow
def test_equal_charts_make_equal_files(kind: FigureFormat) -> None:
    one, two = (figure_file(chart(series("a", mark(1e12, 30, is_end=True))), kind) for _ in range(2))
    assert one == two
    if kind == "png":
        assert int.from_bytes(one[16:20], "big") == 1600


def test_drawing_leaves_the_settings_of_matplotlib_as_they_are() -> None:
    before = dict(matplotlib.rcParams)
    figure_file(chart(series("a", mark(1e12, 30))), "png", "paper")
    assert dict(matplotlib.rcParams) == before
