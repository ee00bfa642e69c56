"""Writes tables as GitHub Markdown."""

import re

from growctl.content.section import Column, Table
from growctl.text.escaping import visible

_MARKUP = re.compile(r"[\\`*_\[\]<>&|~$]|(?<=[A-Za-z]):(?=//)|(?<=[Ww]{3})\.|@")
"""What means something inside a cell: emphasis, code, links, HTML, entities, formulas, and addresses, which GitHub
links by itself. A backslash takes its meaning away."""


def markdown_table(table: Table) -> str:
    """`table`; the heading of a group of rows is a row of its own, and its notes are a list below the table."""
    lines = [[escape(column.heading) for column in table.columns]]
    for rows in table.groups:
        if rows.heading:
            remark = f" {escape(rows.remark)}" if rows.remark else ""
            lines.append([f"**{escape(rows.heading)}**{remark}", *[""] * (len(table.columns) - 1)])
        lines += [[escape(cell.text) for cell in row] for row in rows.rows]
    plain = [line for line in lines if not line[0].startswith("**")]  # headings may be longer than their column
    widths = [max(3, *(len(line[place]) for line in plain)) for place in range(len(table.columns))]
    drawn = [_line(line, widths, table.columns) for line in lines]
    rule = "| " + " | ".join(_rule(column, width) for column, width in zip(table.columns, widths, strict=True)) + " |"
    notes = [
        f"- {escape(rows.heading)}: {escape(note)}" if rows.heading else f"- {escape(note)}"
        for rows in table.groups
        for note in (*rows.reasons, *rows.notes)
    ]
    below = ["", *notes] if notes else []
    caption = ["", escape(table.caption)] if table.caption else []
    return "\n".join([drawn[0], rule, *drawn[1:], *below, *caption]) + "\n"


def escape(text: str) -> str:
    """`text` as Markdown that shows it unchanged, in one line."""
    return _MARKUP.sub(r"\\\g<0>", visible(" ".join(text.split())))


def _line(cells: list[str], widths: list[int], columns: tuple[Column, ...]) -> str:
    aligned = (
        cell.rjust(width) if column.is_number else cell.ljust(width)
        for cell, width, column in zip(cells, widths, columns, strict=True)
    )
    return f"| {' | '.join(aligned)} |"


def _rule(column: Column, width: int) -> str:
    return "-" * (width - 1) + ":" if column.is_number else "-" * width
