"""The page of a report in a browser: on a phone and a desktop, in light and dark, on paper, by keyboard."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from growctl.analysis.runs import RunReport
from growctl.report.charts import compute_chart
from tests.browser.checks import differs_from_stored, overlaps, violations
from tests.browser.conftest import DESKTOP, PHONE, Open
from tests.browser.invented_report import COMMAND, EVIL, invented_page, invented_runs

if TYPE_CHECKING:
    from playwright.sync_api import Locator

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


@each_screen
def test_axe_finds_no_violation(open_page: Open, path: Path, width: int, scheme: str, axe: str) -> None:
    page = open_page(path, width, scheme)
    for folded in page.locator("details > summary").all():
        if not folded.evaluate("summary => summary.parentElement.open"):
            folded.click()
    assert violations(page, axe) == []


@each_screen
def test_the_page_looks_as_it_did(
    open_page: Open, path: Path, width: int, scheme: str, pytestconfig: pytest.Config
) -> None:
    """Loosely: `pytest tests/browser --write-screenshots` after a change that you have looked at."""
    page = open_page(path, width, scheme)
    write = pytestconfig.getoption("--write-screenshots")
    assert differs_from_stored(page.screenshot(), f"top-{width}-{scheme}", write) <= 1
    chart = page.locator("#chart-compute-against-perplexity .chart-box")
    assert differs_from_stored(chart.screenshot(), f"chart-{width}-{scheme}", write) <= 1


def test_a_phone_never_scrolls_sideways(open_page: Open, path: Path) -> None:
    page = open_page(path, PHONE, is_mobile=True, has_touch=True)
    for folded in page.locator("details > summary").all():
        if not folded.evaluate("summary => summary.parentElement.open"):
            folded.click()
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [PHONE, PHONE]
    assert overlaps(page.locator(".chart svg text, .chart-y, .chart-legend button")) == []


def test_every_measured_point_is_on_the_page(open_page: Open, path: Path, runs: list[RunReport]) -> None:
    chart = compute_chart(runs)
    drawn = open_page(path).locator(f"#chart-{chart.key}")
    tables = [body.inner_text().splitlines() for body in drawn.locator("tbody").all()]
    series = [each for each in chart.series if each.marks and not each.is_guide]
    assert [name for name, *_ in tables] == [each.name for each in series]
    for (_, *rows), each in zip(tables, series, strict=True):
        for row, mark in zip(rows, each.marks, strict=True):
            assert {value for _, value in mark.facts} <= set(row.split("\t"))
    marks = [(each.name, mark) for each in series for mark in each.marks]
    shown = [str(row) for row, (_, mark) in enumerate(marks) if mark.y <= (chart.y_limit or mark.y)]
    in_plot = drawn.locator(".chart-mark").evaluate_all("all => all.map(mark => mark.dataset.row)")
    assert sorted(in_plot, key=int) == shown
    assert len(shown) > 60


def test_a_run_named_like_a_script_is_text(open_page: Open, path: Path) -> None:
    page = open_page(path)
    assert EVIL in page.title()
    assert page.locator("h1", has_text=EVIL).count() == 1
    assert EVIL in page.locator(".chart-legend").first.inner_text()
    assert page.locator("script", has_text="alert(1)").count() == 0


def test_tables_sort_by_exact_figures_within_their_groups(open_page: Open, path: Path) -> None:
    page = open_page(path)
    table = page.locator("#stages table").first
    heading = table.get_by_role("columnheader", name="perplexity").first
    number = heading.evaluate("cell => cell.cellIndex")

    def figures() -> list[list[float]]:
        return table.evaluate(
            """(table, number) => [...table.tBodies].map(body => [...body.rows].filter(row => !row.className)
            .map(row => Number(row.cells[number].dataset.value)).filter(value => !Number.isNaN(value)))""",
            number,
        )

    before = figures()
    assert sum(len(group) > 1 for group in before) >= 3
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert figures() == [sorted(group) for group in before]
    heading.get_by_role("button").press("Enter")
    assert figures() == [sorted(group, reverse=True) for group in before]
    heading.get_by_role("button").click()
    assert figures() == before


def test_a_command_is_copied_as_it_is(open_page: Open, path: Path) -> None:
    page = open_page(path)
    page.evaluate("() => { navigator.clipboard.writeText = async text => { window.copied = text } }")
    button = page.locator("#again button.copy")
    button.click()
    assert page.evaluate("copied") == COMMAND
    page.get_by_role("status").filter(has_text="Copied").wait_for(state="attached")


def test_a_command_is_selected_where_the_browser_forbids_copying(open_page: Open, path: Path) -> None:
    page = open_page(path)
    page.evaluate(
        "() => { navigator.clipboard.writeText = () => Promise.reject(); document.execCommand = () => false }"
    )
    page.locator("#again button.copy").click()
    page.wait_for_function("getSelection().toString() !== ''")
    assert page.evaluate("getSelection().toString()").strip() == COMMAND


def test_the_keyboard_reaches_what_a_mouse_does(open_page: Open, path: Path) -> None:
    page = open_page(path)
    reached: set[str] = set()
    for _ in range(400):
        page.keyboard.press("Tab")
        kind = page.evaluate("document.activeElement.getAttribute('class') || document.activeElement.tagName")
        if kind == "BODY":
            break
        reached.update(kind.split())
    assert {"A", "BUTTON", "chart-mark", "copy"} <= reached
    assert kind == "BODY", "Tab never left the page"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_prints_on_a4(open_page: Open, path: Path, scheme: str) -> None:
    page = open_page(path, scheme=scheme)
    document = page.pdf(format="A4", prefer_css_page_size=True)
    sizes = [[float(side) for side in found.split()] for found in re.findall(rb"/MediaBox\s*\[([^\]]*)\]", document)]
    assert all(abs(width - 595) < 2 and abs(height - 842) < 2 for _, _, width, height in sizes)
    assert 2 <= len(sizes) <= 20
    page.set_viewport_size({"width": 794 - 106, "height": 1000})  # A4 at 96 pixels an inch, without its margins
    page.emulate_media(media="print", color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 794 - 106
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(26, 31, 38)"
    assert overlaps(page.locator(".chart svg text, .chart-y, .chart-legend button")) == []
    for gone in (".chart-axes", ".copy", "nav"):
        assert not any(each.is_visible() for each in page.locator(gone).all())


def test_without_scripts_nothing_is_missing(open_page: Open, path: Path) -> None:
    with_scripts, without = open_page(path), open_page(path, java_script_enabled=False)

    def words(of: "Locator") -> list[str]:
        return re.findall(r"\w+", of.inner_text())

    for section in with_scripts.locator("section").all():
        name = section.get_attribute("id")
        parts = [f"#{name} {part}" for part in ("h2", "p", "table", "pre", ".chart-legend")]
        for part in parts:
            texts = [[words(each) for each in page.locator(part).all()] for page in (with_scripts, without)]
            assert texts[0] == texts[1], part
