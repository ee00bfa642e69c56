"""Prints sections as plain lines, for logs and screen readers: no colour, no columns, no line broken at a width."""

from collections.abc import Callable, Iterator, Sequence

from growctl.content.brief import for_terminal
from growctl.content.section import Cell, Listing, Paragraph, Rows, Section, Table


def print_plain(sections: Sequence[Section], say: Callable[[str], None], *, details: bool = False) -> None:
    """Says the sections that belong in the terminal, line by line, with a line between two sections."""
    for number, section in enumerate(for_terminal(sections, details=details)):
        if number:
            say("")
        for line in plain_lines(section):
            say(line)


def plain_lines(section: Section) -> Iterator[str]:
    """A section in lines: its heading, every paragraph on one line, every row of a table on one line."""
    yield section.heading
    for part in section.parts:
        if isinstance(part, Paragraph):
            yield f"Warning: {part.text}" if part.tone == "warning" else part.text
        elif isinstance(part, Table):
            for rows in part.groups:
                yield from _rows(part, rows)
            if part.caption:
                yield part.caption
        elif isinstance(part, Listing):
            yield f"{part.label}:"
            yield from part.text.rstrip().splitlines()


def _rows(table: Table, rows: Rows) -> Iterator[str]:
    if rows.heading:
        yield f"{rows.heading} ({rows.remark})" if rows.remark else rows.heading
    for name, *cells in rows.rows:
        pairs = zip(table.columns[1:], cells, strict=True)
        yield f"{name.text}: {'; '.join(f'{column.heading} {_text(cell)}' for column, cell in pairs)}"
    yield from (*rows.reasons, *rows.notes)


def _text(cell: Cell) -> str:
    return "none" if cell.text == "-" else cell.text
