r"""Writes tables for LaTeX. They need the package `booktabs`, and nothing else of a paper's preamble."""

import re

from growctl.content.section import Cell, Column, Table
from growctl.text.escaping import visible

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\ttfamily\char34}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}
"""Characters that LaTeX reads as something else, and what prints them. Brackets and stars would belong to the `\\\\` of
the row before."""

_ESCAPED = re.compile("|".join(map(re.escape, SPECIAL)) + "|-(?=-)")
_NUMBER = re.compile(r"(?<![\w.-])([+-]?)(\d+(?:,\d{3})*(?:\.\d+)?)(?:e([+-]?\d+))?(?![\w.]*\d)")


def latex_table(table: Table) -> str:
    """`table` as a `tabular` in a `table` of its own, labelled `tab:KEY`; notes come below it, small."""
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        *([f"  \\caption{{{escape(table.caption)}}}"] if table.caption else []),
        f"  \\label{{tab:{re.sub(r'[^A-Za-z0-9:-]', '-', table.key)}}}",
        f"  \\begin{{tabular}}{{@{{}}{''.join('r' if column.is_number else 'l' for column in table.columns)}@{{}}}}",
        r"    \toprule",
        _row([escape(column.heading) for column in table.columns]),
        r"    \midrule",
    ]
    for number, rows in enumerate(table.groups):
        if rows.heading:
            remark = f" {escape(rows.remark)}" if rows.remark else ""
            lines += [r"    \addlinespace"] * bool(number)
            span = f"\\multicolumn{{{len(table.columns)}}}{{@{{}}l}}"
            lines.append(f"    {span}{{\\textbf{{{escape(rows.heading)}}}{remark}}} \\\\")
        lines += [
            _row([_cell(cell, column) for cell, column in zip(row, table.columns, strict=True)]) for row in rows.rows
        ]
    lines += [r"    \bottomrule", r"  \end{tabular}"]
    for rows in table.groups:
        whose = f"{escape(rows.heading)}: " if rows.heading else ""
        lines += [f"  \\par\\footnotesize {whose}{escape(note)}" for note in (*rows.reasons, *rows.notes)]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def escape(text: str) -> str:
    """`text` as LaTeX that prints it unchanged, in one line."""
    return _printed(visible(" ".join(text.split())))


def _printed(text: str) -> str:
    return _ESCAPED.sub(lambda found: SPECIAL.get(found[0], "-{}"), text)


def _row(cells: list[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def _cell(cell: Cell, column: Column) -> str:
    """A cell; numbers get minus signs, and exponents as powers of ten."""
    if not column.is_number:
        return escape(cell.text)
    text, found, end = visible(" ".join(cell.text.split())), [], 0
    for number in _NUMBER.finditer(text):
        found += [_printed(text[end : number.start()]), _number(*number.groups())]
        end = number.end()
    return "".join([*found, _printed(text[end:])])


def _number(sign: str, digits: str, exponent: str | None) -> str:
    if not (sign or exponent):
        return digits
    power = f" \\times 10^{{{int(exponent)}}}" if exponent else ""
    return f"${sign}{digits.replace(',', '{,}')}{power}$"
