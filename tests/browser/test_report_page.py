"""The page of a report in a browser: on a phone and a desktop, in light and dark, on paper, by keyboard."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from growctl.runs.runs import RunReport
from tests.browser.checks import violations
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


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_page_never_scrolls_sideways_and_charts_fit_in_it(open_page: Open, path: Path, width: int) -> None:
    page = open_page(path, width)
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for chart in page.locator("img.chart").all():
        assert (chart.bounding_box() or {"width": 0.0})["width"] <= width


def test_a_run_named_like_a_script_is_text(open_page: Open, path: Path) -> None:
    page = open_page(path)
    assert EVIL in page.title()
    assert page.locator("h1", has_text=EVIL).count() == 1
    assert page.locator("script", has_text="alert(1)").count() == 0
