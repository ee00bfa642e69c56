"""Where names break in narrow tables."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from growctl.text.terminal import NameCell, broken


@pytest.mark.parametrize(
    ("name", "width", "lines"),
    [
        ("scratch-of-each-size", 11, ["scratch-of-", "each-size"]),
        ("1-large/release", 10, ["1-large/", "release"]),
        ("  best-scratch-2x", 15, ["  best-scratch-", "  2x"]),
        ("one, two-b, three", 9, ["one, two-", "b, three"]),
        ("a--b-", 2, ["a-", "-", "b-"]),
    ],
)
def test_a_name_breaks_after_hyphens_slashes_and_spaces_and_keeps_its_indent(name, width, lines):
    assert broken(name, width) == lines


@pytest.mark.parametrize("width", [1, 8, 20, 40])
def test_a_word_that_is_wider_than_its_column_is_folded_and_never_cut(width):
    table = Table(box=None, padding=0, show_header=False)
    table.add_column(width=width)
    table.add_row(NameCell("unbreakable-word"))
    out = io.StringIO()
    Console(file=out, width=80).print(table)
    lines = out.getvalue().split()
    assert "".join(lines) == "unbreakable-word"
    assert max(map(len, lines)) <= width
