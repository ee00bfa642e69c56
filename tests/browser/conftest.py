"""Chromium, and pages opened in it. Every page that a test opens must stay without errors and without the network."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
AXE = Path(__file__).resolve().parents[2] / "build/browser/node_modules/axe-core/axe.min.js"
PHONE, DESKTOP = 400, 1280
HEIGHTS = {PHONE: 844, DESKTOP: 1000}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")


@dataclass
class Opened:
    """A page in the browser, and what went wrong in it."""

    page: "Page"
    problems: list[str] = field(default_factory=list)

    def watch(self, address: str) -> None:
        """Collects errors, and every request but the one for the page itself."""
        self.page.on("console", lambda said: self.problems.append(said.text) if said.type != "log" else None)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.problems.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda sent: self.problems.append(sent.url) if sent.url != address else None)


Open = Callable[..., "Page"]
"""Opens a file: `open_page(path, width=PHONE, scheme="dark", **settings of the browser's context)`."""


@pytest.fixture(scope="session")
def chromium() -> "Iterator[Browser]":
    """A headless Chromium."""
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
def open_page(chromium: "Browser") -> Iterator[Open]:
    """Opens pages; when the test is over, none may have logged an error or asked for anything."""
    opened: list[Opened] = []

    def open_one(path: Path, width: int = DESKTOP, scheme: Any = "light", **settings: Any) -> "Page":
        context = chromium.new_context(
            viewport={"width": width, "height": HEIGHTS[width]},
            color_scheme=scheme,
            reduced_motion="reduce",
            **settings,
        )
        one = Opened(context.new_page())
        one.watch(path.as_uri())
        opened.append(one)
        one.page.goto(path.as_uri())
        return one.page

    yield open_one
    for one in opened:
        one.page.context.close()
    assert [problem for one in opened for problem in one.problems] == []


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    if not AXE.is_file():
        pytest.skip(f"no axe-core at {AXE}: run `make test-browser`, which needs npm")
    return AXE.read_text()
