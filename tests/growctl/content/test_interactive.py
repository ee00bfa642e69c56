"""The chart of a page as it is without a browser: complete without scripts, and safe with any name."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace

import pytest

from growctl.content.chart import Chart, Mark, Rule
from growctl.content.interactive import SCRIPT, STYLE, chart_html
from growctl.content.rule_labels import place_labels
from tests.growctl.content.charts import chart, mark, series

LADDER = series("quick", mark(1e12, 8, hours=1), mark(1e13, 4, hours=3, is_end=True))


def drawn(of: Chart) -> ElementTree.Element:
    """The chart's HTML, parsed: everything in it is closed and escaped."""
    return ElementTree.fromstring(chart_html(of))


def with_class(root: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    """All elements of a class."""
    return (each for each in root.iter() if name in each.get("class", "").split())


def test_every_point_is_drawn_at_its_place_on_each_axis() -> None:
    first, last = with_class(drawn(chart(LADDER)), "chart-mark")
    assert first.get("x") == first.get("data-x").split(",")[0]
    at = [[float(x.rstrip("%")) for x in each.get("data-x").split(",")] for each in (first, last)]
    assert at[0][0] == pytest.approx(100 * 0.04 / 1.08, abs=0.01)
    assert at[1][0] == pytest.approx(100 * 1.04 / 1.08, abs=0.01)
    assert at[1][1] == pytest.approx(100 * 3 / 3.08, abs=0.01)
    assert float(first.get("y").rstrip("%")) < float(last.get("y").rstrip("%"))


def test_a_long_curve_and_a_control_are_a_line_with_its_ends_and_the_table_has_every_point() -> None:
    way = [mark(1e12 * step, 9 - step / 10, hours=step) for step in range(1, 30)]
    end = mark(4e13, 4, hours=40, is_end=True)
    for one in (series("long", *way, end), series("short", *way[:3], end, role="control")):
        root, marks = drawn(chart(one)), one.marks
        [only] = with_class(root, "chart-mark")
        assert only.get("data-row") == str(len(marks) - 1)
        assert len(root.findall(".//tbody/tr[td]")) == len(marks)
        lines = [each.get("points", "").split(" ") for each in root.iter("polyline")]
        assert {len(points) for points in lines} == {2 * len(marks)}
        assert next(iter(with_class(root, "chart-quiet"))) is not None


def test_only_axes_with_data_are_offered() -> None:
    html = chart_html(chart(LADDER))
    assert "Device-hours" in html
    assert "Money" not in html


def test_a_point_that_an_axis_lacks_is_hidden_there() -> None:
    flops_only = chart(LADDER, series("paper", mark(2e12, 6), role="published"))
    marks = list(with_class(drawn(flops_only), "chart-mark"))
    assert marks[0].get("class") == "chart-mark"
    paper = next(each for each in marks if each.get("data-row") == "2")
    assert paper.get("data-x").endswith(",")


def test_points_without_a_place_stay_in_the_table() -> None:
    diverged = series("diverged", mark(1e12, float("nan")), mark(0, 5))
    root = drawn(chart(LADDER, diverged))
    assert len(list(with_class(root, "chart-mark"))) == 2
    assert len(root.findall(".//tbody/tr[td]")) == 4


def test_a_chart_without_points_says_its_summary() -> None:
    html = chart_html(chart())
    assert "<svg" not in html
    assert "<p>Falls.</p>" in html


def test_an_interval_has_whiskers_and_stands_in_the_table() -> None:
    root = drawn(chart(series("mean", replace(mark(1e12, 5), interval=(4.5, 5.75)), mark(1e13, 4))))
    assert len(list(with_class(root, "chart-whisker"))) == 3
    assert "4.5 to 5.75" in [cell.text for cell in root.iter("td")]


def test_points_without_facts_show_their_places() -> None:
    root = drawn(chart(series("bare", Mark({"flops": 1.25e12}, 5.125))))
    assert [cell.text for cell in root.iter("td")] == ["5.125", "1.25e12"]


def test_names_with_markup_stay_text() -> None:
    evil = "<script>alert(1)</script>\x1b\"'&"
    of = chart(series(evil, mark(1e12, 5)), rules=(Rule({"flops": 1e12}, evil),))
    html = chart_html(replace(of, title=evil, summary=evil))
    assert "<script" not in html
    assert "\x1b" not in html
    drawn(replace(of, title=evil, summary=evil))


def test_the_page_needs_neither_inline_styles_nor_handlers_nor_the_network() -> None:
    html = chart_html(chart(LADDER, rules=(Rule({"flops": 2e12}, "grows"),)))
    assert " style=" not in html
    assert " on" not in html.replace(" on ", " ")
    assert "http" not in html + STYLE + SCRIPT
    assert "</" not in STYLE + SCRIPT


def test_labels_of_vertical_lines_do_not_overlap() -> None:
    labels = [(place / 20, f"grows to {place}", "c0") for place in range(20)]
    placed = place_labels(labels, width=300)
    assert len(placed) == 20
    for row in {label.row for label in placed}:
        spans = sorted(
            (label.place * 300 - (len(label.text) * 6 if label.is_left else 0), label.text, label.is_left)
            for label in placed
            if label.row == row
        )
        ends = [start + 6 * len(text) for start, text, _ in spans]
        assert all(end <= start for end, (start, _, _) in zip(ends, spans[1:], strict=False))
        assert all(start >= 0 and end <= 300 for (start, _, _), end in zip(spans, ends, strict=True))


def test_seeds_that_grow_together_share_a_label() -> None:
    labels = [(place, "grows to 2M", "c0") for place in (0.5, 0.5, 0.51, 0.53)]
    assert len(place_labels(labels, width=500)) == 1


def test_growths_of_two_ladders_at_one_place_share_a_label_but_neighbours_do_not() -> None:
    assert len(place_labels([(0.5, "grows to 2M", "c0"), (0.5, "grows to 2M", "c1")], width=500)) == 1
    assert len(place_labels([(0.5, "grows to 2M", "c0"), (0.53, "grows to 2M", "c1")], width=500)) == 2
