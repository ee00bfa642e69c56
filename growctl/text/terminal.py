"""Prints sections to the terminal. A narrow terminal gets fewer columns of a table."""

import re
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from growctl.text.console import BAD, FAINT, GOOD, WARNING
from growctl.text.formatting import wrapped
from growctl.text.section import CellTone, Column, Facts, Listing, Paragraph, Rows, Section, Table, Tone, for_terminal

MOST_NAME, LEAST_NAME = 24, 12
"""The widest column of names, and the narrowest before columns are dropped; longer names break at hyphens."""

_INDENT = 2
_STYLES: dict[CellTone, str] = {
    "plain": "", "strong": "bold", "good": GOOD, "warning": WARNING, "bad": BAD, "faint": FAINT
}  # fmt: skip
_TONES: dict[Tone, str] = {"plain": "", "heading": "bold", "strong": "bold", "note": FAINT, "warning": WARNING}
_LEAST_TEXT = 12
"""The narrowest column of text that may break into lines."""


def print_sections(sections: Sequence[Section], console: Console, *, details: bool = False) -> None:
    """Prints the sections that belong in the terminal, each with its heading. A word such as a path stays whole."""
    for number, section in enumerate(for_terminal(sections, details=details)):
        if number:
            console.print()
        if section.heading:
            _print_text(section.heading, console, "bold", 0)
        for part in section.parts:
            if isinstance(part, Paragraph):
                if part.tone == "heading":
                    console.print()
                warned = "warning: " if part.tone == "warning" else ""
                _print_text(warned + part.text, console, _TONES[part.tone], 0 if part.tone == "heading" else _INDENT)
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
        most = MOST_NAME if len(texts) == 1 else room
        widths[texts[0]] = max(1, min(widths[texts[0]], room - others, most))

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


class NameCell:
    """A table cell with a name, or several. A name that is too wide breaks after a hyphen or slash, not within a word,
    and its lines are indented like the first."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text("\n".join(broken(self._name, options.max_width)), overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        whole = len(self._name)
        return Measurement(min(whole, max(map(len, broken(self._name, 1)))), whole)


def broken(name: str, width: int) -> list[str]:
    """`name` in lines of at most `width` characters, unless a single word is longer."""
    body = name.lstrip(" ")
    indent = name[: len(name) - len(body)]
    lines = [""]
    for word in re.findall(r"[^-/ ]*[-/ ]|[^-/ ]+$", body):
        if lines[-1] and len(indent + lines[-1] + word.rstrip(" ")) > width:
            lines.append("")
        lines[-1] += word
    return [indent + line.rstrip(" ") for line in lines]
