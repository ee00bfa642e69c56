"""Prints sections to the terminal, or as plain lines. A narrow terminal gets fewer columns of a table."""

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from growctl.text.colours import BAD, FAINT, GOOD, WARNING
from growctl.text.console import Terminal
from growctl.text.documents import print_document
from growctl.text.formatting import wrapped
from growctl.text.name_cell import NameCell
from growctl.text.section import Cell, CellTone, Column, Facts, Listing, Paragraph, Rows, Section, Table, for_terminal

MOST_NAME, LEAST_NAME = 24, 12
"""The widest column of names, and the narrowest before columns are dropped; longer names break at hyphens."""

_INDENT = 2
_STYLES: dict[CellTone, str] = {
    "plain": "", "strong": "bold", "good": GOOD, "warning": WARNING, "bad": BAD, "faint": FAINT
}  # fmt: skip
_LEAST_TEXT = 12
"""The narrowest column of text that may break into lines."""


def print_result(document: object, sections: Iterable[Section], *, as_json: bool) -> None:
    """Prints what a command found: as one JSON document, or as sections."""
    if as_json:
        print_document(document)
    else:
        print_sections([*sections], Terminal(highlight=False))


def print_sections(sections: Sequence[Section], console: Console, *, details: bool = False) -> None:
    """Prints the sections that belong in the terminal, each with its heading. A word such as a path stays whole."""
    for number, section in enumerate(for_terminal(sections, details=details)):
        if number:
            console.print()
        if section.heading:
            _print_text(section.heading, console, "bold", 0)
        for part in section.parts:
            if isinstance(part, Paragraph):
                _print_paragraph(part, console)
            elif isinstance(part, Table):
                _print_table(part, console)
            elif isinstance(part, Facts):
                _print_facts(part, console)
            elif isinstance(part, Listing):
                _print_text(part.label, console, FAINT)
                if part.is_command:  # stays on one line, to be copied
                    console.print(Text(" " * 2 * _INDENT + part.text), soft_wrap=True)
                else:
                    _print(Text(part.text.rstrip()), console, 2 * _INDENT)


def _print(what: RenderableType, console: Console, indent: int = _INDENT) -> None:
    console.print(Padding(what, (0, 0, 0, indent)))


def _print_text(text: str, console: Console, style: str = "", indent: int = _INDENT) -> None:
    """Prints lines broken between words."""
    lines = wrapped(text, max(1, console.width - indent)).split("\n")
    console.print(Text("\n".join(" " * indent + line for line in lines), style), soft_wrap=True)


def _print_paragraph(paragraph: Paragraph, console: Console) -> None:
    if paragraph.tone == "heading":
        console.print()
        console.print(Text(paragraph.text, "bold"))
    elif paragraph.tone == "warning":
        _print_text(f"warning: {paragraph.text}", console, WARNING)
    else:
        _print_text(paragraph.text, console, {"strong": "bold", "note": FAINT}.get(paragraph.tone, ""))


def _print_facts(facts: Facts, console: Console) -> None:
    width = max((len(label) for label, _ in facts.rows), default=0) + 2
    for label, text in facts.rows:
        first, *rest = wrapped(text, max(1, console.width - _INDENT - width)).split("\n")
        lines = [first, *(" " * (_INDENT + width) + line for line in rest)]
        console.print(Text.assemble(" " * _INDENT, (label.ljust(width), "bold"), "\n".join(lines)), soft_wrap=True)


def _print_table(table: Table, console: Console) -> None:
    headings = [_in_lines(column.heading) if column.is_number else column.heading for column in table.columns]
    widths = [_width(table, index, heading) for index, heading in enumerate(headings)]
    shown, gap = _layout(table.columns, widths, console.width - _INDENT)
    taken = sum(widths[index] + gap for index in shown if table.columns[index].is_number)
    texts = [index for index in shown if not table.columns[index].is_number]
    room = console.width - _INDENT - taken - gap * len(texts)
    if texts:
        others = sum(min(widths[index], _LEAST_TEXT) for index in texts[1:])
        widths[texts[0]] = max(1, min(widths[texts[0]], room - others))
        if len(texts) == 1:
            widths[texts[0]] = max(1, min(widths[texts[0]], MOST_NAME))

    def print_rows(rows: Rows | None) -> None:
        lines = RichTable(box=None, show_header=rows is None, padding=(0, gap, 0, 0), header_style="bold")
        for index in shown:
            column = table.columns[index]
            fixed = widths[index] if column.is_number or index == texts[0] else None
            lines.add_column(
                headings[index],
                width=fixed,
                justify="right" if column.is_number else "left",
                no_wrap=column.is_number,
                overflow="fold",
                vertical="bottom" if rows is None else "top",
            )
        for row in rows.rows if rows else ():
            cells = [row[index] for index in shown]
            others = (Text(cell.text, _STYLES[cell.tone]) for cell in cells[1:])
            lines.add_row(NameCell(cells[0].text), *others)
        _print(lines, console)

    print_rows(None)
    for rows in table.groups:
        if rows.heading:
            console.print(Text.assemble((rows.heading, "bold"), "  ", (rows.remark, FAINT)))
        if rows.rows:
            print_rows(rows)
        for note in (*rows.reasons, *rows.notes):
            _print(Text(note, FAINT), console)
    if table.caption:
        _print(Text(table.caption, FAINT), console)


def _in_lines(heading: str) -> str:
    """The heading of a narrow column: `LAMBADA ppl` and `HellaSwag` take two lines each."""
    return re.sub(r"(?<=[a-z]{2})(?=[A-Z])", "-\n", heading.replace(" ", "\n", 1))


def _width(table: Table, index: int, heading: str) -> int:
    """The widest word of a heading, or cell of a column."""
    cells = [row[index].text for rows in table.groups for row in rows.rows]
    return max(map(len, (*heading.split("\n"), *cells)))


def _layout(columns: Sequence[Column], widths: Sequence[int], room: int) -> tuple[list[int], int]:
    """The columns to print, by number, and the gap between them."""
    texts = [index for index, column in enumerate(columns) if not column.is_number]
    wanted = {index: min(widths[index], MOST_NAME if index == texts[0] else _LEAST_TEXT) for index in texts}
    least = {index: min(width, LEAST_NAME) for index, width in wanted.items()}
    drops = sorted({column.drop for column in columns} - {0})
    shown, gap = list(range(len(columns))), 2
    for gap, dropped in ((2, None), (1, None), *((1, drop) for drop in drops)):
        shown = [index for index in shown if not dropped or columns[index].drop != dropped]
        needs = wanted if gap == 2 else least
        if sum(needs.get(index, widths[index]) + gap for index in shown) <= room:
            break
    return shown, gap


def plain_lines(sections: Sequence[Section], *, details: bool = False) -> Iterator[str]:
    """Sections as lines for logs and screen readers: each paragraph and each row of a table is one, of any length."""
    for number, section in enumerate(for_terminal(sections, details=details)):
        yield from [""] if number else []
        yield from [section.heading] if section.heading else []
        yield from _plain_parts(section)


def _plain_parts(section: Section) -> Iterator[str]:
    for part in section.parts:
        if isinstance(part, Paragraph):
            yield f"Warning: {part.text}" if part.tone == "warning" else part.text
        elif isinstance(part, Table):
            for rows in part.groups:
                yield from _plain_rows(part, rows)
            if part.caption:
                yield part.caption
        elif isinstance(part, Facts):
            yield from (f"{label}: {text}" if label else text for label, text in part.rows)
        elif isinstance(part, Listing):
            yield f"{part.label}:"
            yield from part.text.rstrip().splitlines()


def _plain_rows(table: Table, rows: Rows) -> Iterator[str]:
    if rows.heading:
        yield f"{rows.heading} ({rows.remark})" if rows.remark else rows.heading
    for name, *cells in rows.rows:
        pairs = [pair for pair in zip(table.columns[1:], cells, strict=True) if pair[1].text]
        yield f"{name.text}: {'; '.join(f'{column.heading} {_plain_text(cell)}' for column, cell in pairs)}"
    yield from (*rows.reasons, *rows.notes)


def _plain_text(cell: Cell) -> str:
    return "none" if cell.text == "-" else cell.text
