"""What the pages of the documentation name exists: files, headings, names of the Python API."""

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

from tests.workers import REPOSITORY

PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
DOCUMENTED = [
    name
    for page in sorted((REPOSITORY / "docs/api").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
]


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


def test_every_documented_name_of_the_python_api_exists() -> None:
    assert len(DOCUMENTED) > 20
    for name in DOCUMENTED:
        resolve_name(name)
