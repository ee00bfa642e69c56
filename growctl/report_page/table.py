"""Prepares a table for the page: what each cell is sorted by, and its explanations as lettered notes."""

from dataclasses import dataclass

from growctl.text.section import Cell, Column, Rows, Table


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
    notes: tuple[str, ...]
    """The notes of the rows, without those that explain a cell: these have letters."""


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

    explained = {_folded(cell.why) for rows in table.groups for row in rows.rows for cell in row}
    groups = tuple(
        PageRows(
            rows,
            tuple(tuple(prepared(*pair) for pair in zip(row, table.columns, strict=True)) for row in rows.rows),
            tuple(note for note in rows.notes if _folded(note) not in explained),
        )
        for rows in table.groups
    )
    notes = {letter: f"{why[:1].upper()}{why[1:]}" for why, letter in letters.items()}
    return PageTable(table.columns, groups, table.caption, notes)


def _folded(sentence: str) -> str:
    """A sentence without its capital letter, which depends on where it stands."""
    return sentence[:1].lower() + sentence[1:]


def _letter(number: int) -> str:
    """a to z, then aa, ab, ..."""
    return (_letter(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)
