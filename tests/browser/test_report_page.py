"""The page of a report in a browser: on a phone and a desktop, in light and dark, on paper, by keyboard."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from growctl.runs.runs import RunReport
from tests.browser.checks import overlaps, violations
from tests.browser.conftest import DESKTOP, PHONE, Open
from tests.browser.invented_report import EVIL, invented_page, invented_runs

if TYPE_CHECKING:
    from playwright.sync_api import Page

each_screen = pytest.mark.parametrize(
    ("width", "scheme"), [(PHONE, "light"), (PHONE, "dark"), (DESKTOP, "light"), (DESKTOP, "dark")]
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunReport]:
    return invented_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def path(runs: list[RunReport], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "report.html"
    path.write_text(invented_page(runs))
    return path


def unfold(page: "Page") -> None:
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")


@each_screen
def test_axe_finds_no_violation(open_page: Open, path: Path, width: int, scheme: str, axe: str) -> None:
    page = open_page(path, width, scheme)
    unfold(page)
    assert violations(page, axe) == []


@each_screen
def test_charts_have_the_colours_of_the_page_and_letters_that_can_be_read(
    open_page: Open, path: Path, width: int, scheme: str
) -> None:
    page = open_page(path, width, scheme)
    svg = page.locator("#chart-compute-against-perplexity svg")
    ink = page.evaluate("getComputedStyle(document.body).color")
    text = svg.locator("text").first
    assert text.evaluate("each => getComputedStyle(each).fill") == ink
    assert min(box["height"] for box in (each.bounding_box() for each in svg.locator("text").all()) if box) >= 9
    assert svg.bounding_box()["width"] <= width


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_page_never_scrolls_sideways_and_no_lettering_overlaps(open_page: Open, path: Path, width: int) -> None:
    page = open_page(path, width)
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for chart in page.locator(".chart svg").all():
        assert overlaps(chart.locator("text")) == []


def test_a_run_named_like_a_script_is_text(open_page: Open, path: Path) -> None:
    page = open_page(path)
    assert EVIL in page.title()
    assert page.locator("h1", has_text=EVIL).count() == 1
    assert EVIL in page.locator(".chart svg").first.inner_html().replace("&lt;", "<").replace("&gt;", ">")
    assert page.locator("script", has_text="alert(1)").count() == 0
