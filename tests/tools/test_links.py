"""Links between the project's pages lead to existing files and headings.

`make docs-site` checks the rest.
"""

import re
from pathlib import Path

import pytest

from tests.workers import REPOSITORY

PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])


def dead_links(page: Path) -> list[str]:
    """The relative links of a page that lead to no file, or to no heading of one."""
    found = []
    for target, anchor in re.findall(r"\]\(([^)#\s:]*)#?([^)\s:]*)\)", page.read_text()):
        path = page.parent / target if target else page
        if not path.exists() or (anchor and anchor not in headings(path)):
            found.append(f"{target}#{anchor}" if anchor else target)
    return found


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_a_link_to_no_file_or_heading_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\n## How it is, and why\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#how-it-is-and-why) [c](gone.md) [d](other.md#gone) [e](https://x.org/a)"
    )
    assert dead_links(page) == ["gone.md", "other.md#gone"]
