"""What the pages of the documentation name exists: files, headings, messages."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.metrics import parse_line
from tests.growctl.text.schemas import assert_follows_schema
from tests.workers import REPOSITORY

PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
MESSAGES = re.findall(r"^### `(.*)`$", (REPOSITORY / "docs/troubleshooting.md").read_text(), re.MULTILINE)
VARIES = "…"
"""Stands in a quoted message for the parts that differ from case to case."""


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


def texts(source: str) -> Iterator[str]:
    """The string literals of a source file but docstrings, with VARIES in place of what an f-string fills in."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(source)):  # outer nodes come first
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else VARIES for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def holds(text: str, message: str) -> bool:
    """Whether the constant parts of `message` are in `text`, in order."""
    place = 0
    for part in map(str.strip, message.split(VARIES)):
        place = text.find(part, place) + len(part)
        if place < len(part):
            return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_every_message_that_the_page_on_troubleshooting_quotes_is_in_the_code() -> None:
    files = [path for floor in ("growctl", "stages", "model") for path in (REPOSITORY / floor).rglob("*.py")]
    said = [text for path in files for text in texts(path.read_text())]
    assert [message for message in MESSAGES if not any(holds(text, message) for text in said)] == []
    assert len(MESSAGES) == 10
    assert [message for message in MESSAGES if len(re.findall(r"\w+", message)) < 3] == [], "would be found anywhere"


def test_the_example_lines_of_metrics_follow_the_schema_and_have_a_correct_crc() -> None:
    page = (REPOSITORY / "docs/formats.md").read_text()
    [example] = re.findall(r"^```json\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for line in example.splitlines():
        assert parse_line(line.encode()), line
        assert_follows_schema(json.loads(line), "metrics")
