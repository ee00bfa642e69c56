"""Charts in a browser: every point in its place, exact figures by mouse, touch and keyboard, legible on a phone."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from growctl.content.chart import Axis, Chart, Mark, Role, Rule, Series
from growctl.content.interactive import SCRIPT, STYLE, chart_html
from tests.browser.checks import boxes, overlaps, violations
from tests.browser.conftest import DESKTOP, PHONE, Open

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

EVIL = "<script>alert(1)</script>"
AXES = (
    Axis("flops", "Cumulative training FLOPs", is_log=True),
    Axis("device_hours", "Device-hours"),
    Axis("money", "Money (EUR)"),
)


def curve(name: str, role: Role, group: str, ends: list[tuple[float, float]], interval: float = 0.0) -> Series:
    """A series with an end of a stage at each (FLOPs, perplexity), and two points on the way to each."""
    marks: list[Mark] = []
    flops, perplexity = ends[0][0] / 5, 40.0
    for end, reached in ends:
        for share in (1 / 3, 2 / 3, 1):
            at, y = flops * (end / flops) ** share, perplexity * (reached / perplexity) ** share
            is_end = share == 1
            marks.append(
                Mark(
                    {"flops": at} | ({} if role == "published" else {"device_hours": at / 4e12}),
                    y,
                    (("Training FLOPs", f"{at:.6e}"), ("Perplexity", f"{y:.6f}")),
                    (y - interval, y + interval) if interval and is_end else None,
                    is_end,
                )
            )
        flops, perplexity = end, reached
    return Series(name, tuple(marks), role, group)


CHART = Chart(
    "compute",
    "Compute against perplexity",
    "Perplexity falls with compute.",
    AXES,
    Axis("perplexity", "Validation perplexity", is_log=True),
    (
        curve("quick", "ladder", "quick", [(1e12, 24), (4e12, 14.5)], interval=1.2),
        curve(EVIL, "ladder", "evil", [(2e12, 21), (9e12, 11)]),
        curve("quick-control-tokenformer-scratch", "control", "control", [(1.3e13, 13.5)]),
        Series("quick, releases", (Mark({"flops": 5e12, "device_hours": 1.25}, 17, is_end=True),), "release", "quick"),
        curve("the paper (published)", "published", "paper", [(6e12, 28)]),
    ),
    tuple(
        Rule({"flops": at, "device_hours": at / 4e12}, f"grows to {size}", group)
        for at, size, group in ((1e12, "2.4M", "quick"), (1.2e12, "3M", "evil"), (4e12, "5M", "quick"))
    ),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a chart and nothing else, under a policy as strict as the report's."""
    path = tmp_path_factory.mktemp("pages") / "chart.html"
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    path.write_text(
        f"""<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>A chart</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<style>:root {{ color-scheme: light dark }} body {{ font: 16px/1.5 sans-serif; background: Canvas; margin: 1rem }}
{STYLE}</style></head><body><main><h1>A chart</h1>{chart_html(CHART)}</main><script>{SCRIPT}</script></body></html>"""
    )
    return path


def marks_of(page: "Page", name: str) -> "list[Locator]":
    """The points of a series."""
    series = page.locator(".chart-series").and_(page.get_by_label(name, exact=True))
    return series.locator(".chart-mark").all()


def centre(mark: "Locator") -> tuple[float, float]:
    """The place of a point in the window."""
    x, y = mark.evaluate(
        """mark => { const box = (mark.querySelector("use") || mark).getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2]; }"""
    )
    return x, y


def at_ticks(page: "Page", is_x: bool) -> list[tuple[float, float]]:
    """The (value, place in pixels) of each visible tick, from its label."""
    found = []
    for text, box in boxes(page.locator(f".chart-plot g[aria-hidden] .chart-{'x' if is_x else 'y'}t")):
        middle = (box["left"] + box["right"]) / 2 if is_x else (box["top"] + box["bottom"]) / 2
        found.append((float(text.replace("k", "e3")), middle))
    return found


def off_by(ticks: list[tuple[float, float]], value: float, place: float, is_log: bool) -> float:
    """The distance in pixels of a place from where the first and the last tick put a value."""
    scaled = [(math.log(tick) if is_log else tick, at) for tick, at in ticks]
    (low, start), (high, end) = scaled[0], scaled[-1]
    share = ((math.log(value) if is_log else value) - low) / (high - low)
    return abs(start + share * (end - start) - place)


@pytest.mark.parametrize("axis", AXES[:2], ids=lambda axis: axis.key)
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_every_point_stands_where_its_figures_say(open_page: Open, path: Path, width: int, axis: Axis) -> None:
    page = open_page(path, width)
    page.get_by_role("radio", name=axis.label).check()
    x_ticks, y_ticks = at_ticks(page, is_x=True), at_ticks(page, is_x=False)
    assert min(len(x_ticks), len(y_ticks)) >= 3
    for series in CHART.series:
        marks = marks_of(page, series.name)
        assert len(marks) == len(series.marks)
        for mark, drawn in zip(series.marks, marks, strict=True):
            assert drawn.is_visible() == (axis.key in mark.x)
            if axis.key in mark.x:
                x, y = centre(drawn)
                assert off_by(x_ticks, mark.x[axis.key], x, axis.is_log) < 1
                assert off_by(y_ticks, mark.y, y, CHART.y_axis.is_log) < 2  # letters stand a little off their middle


def test_only_axes_with_figures_are_offered(open_page: Open, path: Path) -> None:
    page = open_page(path)
    assert page.get_by_role("radio").count() == 2
    assert page.get_by_label("Money").count() == 0


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_mouse_over_a_point_shows_its_exact_figures_inside_the_window(
    open_page: Open, path: Path, width: int
) -> None:
    page = open_page(path, width)
    tip = page.locator(".chart-tip")
    for series in CHART.series:
        for mark, drawn in zip(series.marks, marks_of(page, series.name), strict=True):
            page.mouse.move(*centre(drawn))
            assert_shown(tip, series, mark)
            box = tip.bounding_box() or {}
            assert box["x"] >= 0
            assert box["y"] >= 0
            assert box["x"] + box["width"] <= width
            assert box["y"] + box["height"] <= page.evaluate("innerHeight")
    page.mouse.move(2, 2)
    assert tip.is_hidden()


def assert_shown(tip: "Locator", series: Series, mark: Mark) -> None:
    """The tooltip shows the figures of a mark."""
    words = tip.inner_text()
    assert series.name in words
    for name, value in mark.facts:
        assert re.search(rf"{name}\s+{re.escape(value)}", words)
    if mark.interval:
        assert "95 % interval" in words


def test_a_tap_shows_the_figures_and_a_tap_elsewhere_hides_them(open_page: Open, path: Path) -> None:
    page = open_page(path, PHONE, has_touch=True, is_mobile=True)
    tip = page.locator(".chart-tip")
    for series in CHART.series[:3]:
        x, y = centre(marks_of(page, series.name)[-1])
        page.touchscreen.tap(x + 10, y + 10)  # a finger is not exact
        assert_shown(tip, series, series.marks[-1])
    page.touchscreen.tap(20, 20)
    assert tip.is_hidden()


def test_the_keyboard_reaches_every_series_and_every_point(open_page: Open, path: Path) -> None:
    page = open_page(path)
    tip = page.locator(".chart-tip")
    page.get_by_role("radio").first.focus()
    reached = []
    for _ in CHART.series:
        page.keyboard.press("Tab")
        name = tip.locator("strong").inner_text()
        series = next(each for each in CHART.series if each.name == name)
        reached.append(name)
        assert_shown(tip, series, series.marks[0])
        for mark in series.marks[1:]:
            page.keyboard.press("ArrowRight")
            assert_shown(tip, series, mark)
        page.keyboard.press("Home")
        assert_shown(tip, series, series.marks[0])
    assert sorted(reached) == sorted(series.name for series in CHART.series)
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    page.keyboard.press("ArrowUp")
    assert tip.is_visible()


def test_the_keyboard_chooses_the_axis(open_page: Open, path: Path) -> None:
    page = open_page(path)
    page.get_by_role("radio").first.focus()
    page.keyboard.press("ArrowRight")
    labels = page.locator(".chart-x")
    assert [each.text_content() for each in labels.all() if each.is_visible()] == ["Device-hours"]


def test_a_series_hides_by_its_button_also_from_the_mouse_and_the_keyboard(open_page: Open, path: Path) -> None:
    page = open_page(path)
    hidden = CHART.series[1]
    places = [centre(each) for each in marks_of(page, hidden.name)]
    button = page.get_by_role("button", name=hidden.name)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not any(each.is_visible() for each in marks_of(page, hidden.name))
    page.mouse.move(*places[-1])
    assert page.locator(".chart-tip").is_hidden()
    button.press("Enter")
    assert all(each.is_visible() for each in marks_of(page, hidden.name))


def test_without_scripts_the_chart_is_complete(open_page: Open, path: Path) -> None:
    page = open_page(path, java_script_enabled=False)
    shown = [each.is_visible() for each in page.locator(".chart-mark").all()]
    ends_alone = {"control"}  # the line shows the way
    drawn = [mark for series in CHART.series for mark in series.marks if mark.is_end or series.role not in ends_alone]
    assert shown == [True] * len(drawn)
    assert page.locator(".chart-axes").is_hidden()
    assert page.locator(".chart-legend li").count() == len(CHART.series)
    assert page.get_by_role("img", name=CHART.title).count() == 1


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_lettering_is_legible_and_does_not_overlap(open_page: Open, path: Path, width: int) -> None:
    page = open_page(path, width)
    lettering = page.locator(".chart svg text, .chart-y, .chart-legend button")
    for axis in AXES[:2]:
        page.get_by_role("radio", name=axis.label).check()
        assert overlaps(lettering) == []
        sizes = page.locator(".chart svg text").evaluate_all(
            "all => all.map(e => parseFloat(getComputedStyle(e).fontSize))"
        )
        assert min(sizes) >= 12
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for text, box in boxes(page.locator(".chart svg text")):
            assert box["left"] >= 0, text
            assert box["right"] <= width, text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_axe_finds_no_violation_in_a_chart(open_page: Open, path: Path, width: int, scheme: str, axe: str) -> None:
    page = open_page(path, width, scheme)
    assert violations(page, axe) == []
    page.mouse.move(*centre(marks_of(page, "quick")[-1]))
    assert page.locator(".chart-tip").is_visible()
    page.get_by_role("button", name=EVIL).click()
    assert violations(page, axe) == []


def test_a_dark_page_prints_dark_on_white(open_page: Open, path: Path) -> None:
    page = open_page(path, scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    line = page.locator(".chart-series .chart-line").first
    assert line.evaluate("line => getComputedStyle(line).stroke") != "rgb(105, 165, 255)"
    assert page.locator(".chart-axes").is_hidden()
