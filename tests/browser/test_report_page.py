"""The page of an invented report in a headless Chromium: on a phone and a desktop, in light and dark.

`make test-browser` runs it. It needs Chromium, Playwright for Python and axe-core.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from growctl.report.page import render_page
from growctl.report.sections import report_sections
from growctl.runs.find import find_runs
from growctl.text.section import Listing, Section
from tests.growctl.invented_runs import LARGE, SMALL, FakeRun, control, stage_of
from tests.workers import REPOSITORY

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
AXE = REPOSITORY / "build/browser/node_modules/axe-core/axe.min.js"
PHONE, DESKTOP = 400, 1280
HEIGHTS = {PHONE: 844, DESKTOP: 1000}
EVIL = "<script>alert(1)</script>"
RELEASE = replace(stage_of("0-800k/release", 800_000, 200), branch_of="0-800k", decayed=True)

Open = Callable[..., "Page"]
"""Opens the page, unfolded: `open_page(width, scheme)`."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report that has everything: seeds, two ladders, controls, a release, runs that go on, a command to copy."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        name, worse = f"quick-seed-{seed}", 0.012 * seed
        ladder = FakeRun(folder, name, [SMALL, RELEASE, LARGE], run_set=("quick", {"seed": seed}), seed=seed)
        ladder.train(0, 1.42 + worse).train(1, 1.38 + worse, start=1.42).train(2, 1.28 + worse, start=1.42)
        for budget, loss in ((466, 1.38), (933, 1.315), (1866, 1.262)):
            control(folder, budget, loss + worse / 2, of=name, seed=seed)
    control(folder, 3732, None, of="quick-seed-0", seed=0)
    FakeRun(folder, "second", [SMALL, LARGE], rate=2).train(0, 1.75).train(1, None, start=2.1)
    FakeRun(folder, "waiting", [SMALL, LARGE], rate=3)
    # An invented ledger records no seed, and a name may be no file name.
    runs = [
        replace(run, name=EVIL if run.name == "second" else run.name, seed=run.conditions["seed"])
        for run in find_runs(folder, [])
    ]
    command = Listing("The command", f"growctl run quick.yaml 'name={EVIL}'", is_command=True)
    page = folder / "report.html"
    again = Section("again", "Run it again", (command,))
    page.write_text(render_page(f"Report of {EVIL}", [*report_sections(runs), again]))
    return page


@pytest.fixture(scope="module")
def chromium() -> "Iterator[Browser]":
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: run `make test-browser`")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if not program:
        pytest.skip(f"no Chromium: install Debian's package chromium, or set CHROMIUM (looked for {PROGRAMS})")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has no sandbox for root
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: "Browser", path: Path) -> Iterator[Open]:
    """Opens the page; when the test is over, it may not have logged an error or asked for anything."""
    problems: list[str] = []

    def opened(width: int = DESKTOP, scheme: Any = "light") -> "Page":
        viewport: Any = {"width": width, "height": HEIGHTS[width]}
        page = chromium.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce").new_page()
        page.on("console", lambda said: problems.append(said.text) if said.type != "log" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda sent: problems.append(sent.url) if sent.url != path.as_uri() else None)
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        return page

    yield opened
    for context in chromium.contexts:
        context.close()
    assert problems == []


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_of_wcag_2_aa(open_page: Open, width: int, scheme: str) -> None:
    if not AXE.is_file():
        pytest.skip(f"no axe-core at {AXE}: run `make test-browser`, which needs npm")
    page = open_page(width, scheme)
    page.evaluate(AXE.read_text())
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    found = page.evaluate("tags => axe.run(document, { runOnly: tags })", tags)["violations"]
    assert [(violation["id"], [node["html"][:200] for node in violation["nodes"]]) for violation in found] == []


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_the_page_never_scrolls_sideways_and_charts_fit_in_it(open_page: Open, width: int) -> None:
    page = open_page(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for chart in page.locator("img.chart").all():
        assert (chart.bounding_box() or {"width": 0.0})["width"] <= width
