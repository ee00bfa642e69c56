"""Prepares a table for the page: what each cell is sorted by, and its explanations as lettered notes."""

from dataclasses import dataclass

from growctl.content.section import Cell, Column, Rows, Table


@dataclass(frozen=True)
class PageCell:
    """A cell of the page's table."""

    text: str
    sorted_by: str
    """The exact figure; empty if there is none."""
    note: str
    """The letter of the note that explains it; empty if none does."""
    is_number: bool


@dataclass(frozen=True)
class PageRows:
    """Rows that belong together."""

    given: Rows
    rows: tuple[tuple[PageCell, ...], ...]


@dataclass(frozen=True)
class PageTable:
    """A table with everything that its template prints."""

    columns: tuple[Column, ...]
    groups: tuple[PageRows, ...]
    caption: str
    notes: dict[str, str]
    """The explanations of cells, by letter. Cells with the same explanation share a note."""


def page_table(table: Table) -> PageTable:
    """The table as the page shows it."""
    letters: dict[str, str] = {}

    def prepared(cell: Cell, column: Column) -> PageCell:
        note = letters.setdefault(cell.why, _letter(len(letters))) if cell.why else ""
        return PageCell(cell.text, "" if cell.value is None else repr(float(cell.value)), note, column.is_number)

    groups = tuple(
        PageRows(
            rows,
            tuple(tuple(prepared(*pair) for pair in zip(row, table.columns, strict=True)) for row in rows.rows),
        )
        for rows in table.groups
    )
    return PageTable(table.columns, groups, table.caption, {letter: why for why, letter in letters.items()})


def _letter(number: int) -> str:
    """a to z, then aa, ab, ..."""
    return (_letter(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)
