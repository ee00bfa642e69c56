"""Every message that docs/troubleshooting.md quotes is still in the code, and the page covers enough of them."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.workers import REPOSITORY

PAGE = REPOSITORY / "docs/troubleshooting.md"
FLOORS = ("growctl", "stages", "model")
VARIES = "…"
"""Stands on the page for the parts of a message that differ from case to case."""
FEWEST_MESSAGES = 40
FEWEST_WORDS = 3
"""The fewest constant words in a quoted message; fewer would be found anywhere."""


def quoted_messages(page: str) -> list[str]:
    """The messages in the headings of a page: each lies between the first and the last backtick of its heading."""
    return re.findall(r"^### `(.*)`$", page, re.MULTILINE)


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
    for part in message.split(VARIES):
        place = text.find(part.strip(), place)
        if place < 0:
            return False
        place += len(part.strip())
    return True


MESSAGES = quoted_messages(PAGE.read_text())


@pytest.mark.slow
def test_every_message_on_the_page_is_in_the_code() -> None:
    files = [path for floor in FLOORS for path in (REPOSITORY / floor).rglob("*.py")]
    said = [text for path in files for text in texts(path.read_text())]
    assert [message for message in MESSAGES if not any(holds(text, message) for text in said)] == []


def test_the_page_quotes_enough_messages_with_enough_words_each_and_none_twice() -> None:
    assert len(MESSAGES) >= FEWEST_MESSAGES
    assert len(set(MESSAGES)) == len(MESSAGES)
    assert [message for message in MESSAGES if len(re.findall(r"\w+", message)) < FEWEST_WORDS] == []


def test_a_message_is_found_across_its_filled_in_parts_and_only_in_order() -> None:
    (found,) = texts('"Docs, with parts"\nraise ValueError(\n    f"{x} has {len(x)} parts; "\n    "use fewer"\n)')
    assert found == "… has … parts; use fewer"
    assert holds(found, "… has … parts; use fewer")
    assert not holds(found, "… has … pieces; use fewer")
    assert not holds(found, "parts … has")


def test_messages_are_read_from_headings_only() -> None:
    page = "# T\n\n### `a … b`\n`no`\n### `pip `x` now`\n## `group`\n"
    assert quoted_messages(page) == ["a … b", "pip `x` now"]
