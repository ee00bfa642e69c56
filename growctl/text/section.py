"""What a command says, as data: each topic is a section, and the terminal, plain lines and a page show it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Tone = Literal["plain", "heading", "strong", "note", "warning"]
CellTone = Literal["plain", "strong", "good", "warning", "bad", "faint"]


@dataclass(frozen=True)
class Paragraph:
    """One or more sentences of plain text."""

    text: str
    tone: Tone = "plain"
    """`heading`: what the parts below it are about. `strong`: the result. `note`: an aside. `warning`: a reason to
    doubt the result."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    value: float | None = None
    """The exact figure, to sort by; None for text and for unknown figures."""
    why: str = ""
    """Why it is empty or unusual, in a sentence."""
    tone: CellTone = "plain"
    """The colour of a state, such as `bad` of a run that failed."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    heading: str
    is_number: bool = True
    """Numbers align right, text left."""
    drop: int = 0
    """The order in which a narrow terminal drops columns: 1 goes first; 0 stays."""
    cell: Callable[[Any], Cell] = field(default=lambda text: Cell(str(text)), compare=False, repr=False)
    """The cell of a record in this column, for tables that are made by `rows_of`."""


def rows_of(columns: Sequence[Column], records: Iterable[Any]) -> tuple[tuple[Cell, ...], ...]:
    """The rows of a table, one for each record, with the cells that the columns make of it."""
    return tuple(tuple(column.cell(record) for column in columns) for record in records)


def figure(value: float | None, shown: str | Callable[[float], str] = "{:.4f}", why: str = "") -> Cell:
    """A cell with a number, `shown` by a format or a function, or `-` for an unknown one, which `why` explains."""
    if value is None:
        return Cell("-", why=why)
    return Cell(shown.format(value) if isinstance(shown, str) else shown(value), value)


@dataclass(frozen=True)
class Rows:
    """Rows of a table that belong together, such as the stages of a run."""

    rows: tuple[tuple[Cell, ...], ...]
    heading: str = ""
    remark: str = ""
    """Shown faintly beside the heading."""
    notes: tuple[str, ...] = ()
    """Sentences below the rows."""
    is_detail: bool = False
    """Whether the terminal shows them only with `--details`."""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why cells are unusual, each reason once; without empty cells, which need no reason beside the table."""
        whys = (cell.why for row in self.rows for cell in row if cell.why and cell.text != "-")
        return tuple(dict.fromkeys(why[:1].upper() + why[1:] for why in whys))


@dataclass(frozen=True)
class Table:
    """A table."""

    key: str
    """Its name in links, such as `stages`."""
    columns: tuple[Column, ...]
    groups: tuple[Rows, ...]
    caption: str = ""

    @classmethod
    def of(cls, key: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], caption: str = "") -> "Table":
        """A table whose rows all belong together."""
        return cls(key, tuple(columns), (Rows(tuple(map(tuple, rows))),), caption)


@dataclass(frozen=True)
class Listing:
    """Text to copy or to read as it is: a command, a schedule, what a model wrote."""

    label: str
    text: str
    is_command: bool = False
    """Whether a reader may want to copy and run it."""


@dataclass(frozen=True)
class Facts:
    """Labels with what they name, one to a line. A row without a label continues the one before."""

    rows: tuple[tuple[str, str], ...]


class Drawn:
    """A part that only a page shows: a chart (growctl/report/chart.py)."""


Part = Paragraph | Table | Listing | Facts | Drawn


@dataclass(frozen=True)
class Section:
    """One topic of a report."""

    key: str
    """Its name in links, such as `equal-loss`."""
    heading: str
    """Empty: only its parts are shown."""
    parts: tuple[Part, ...]
    in_terminal: bool = True
    """Whether the terminal shows it without `--details`; a page shows every section."""
    is_detail: bool = False
    """Whether a page shows it folded, for those who ask."""


def for_terminal(sections: Sequence[Section], *, details: bool = False) -> list[Section]:
    """`sections` without what only a page shows. Without `details`, only what belongs in the terminal."""
    shown = []
    for section in sections:
        parts: list[Part] = []
        for part in section.parts if details or section.in_terminal else ():
            if isinstance(part, Table) and not details:
                groups = tuple(rows for rows in part.groups if not rows.is_detail)
                parts += [replace(part, groups=groups)] if groups else []
            elif not isinstance(part, Drawn):
                parts.append(part)
        has_charts = any(isinstance(part, Drawn) for part in section.parts)
        asides = ("heading", "note") if has_charts else ("heading",)  # notes on charts that only a page shows
        if not all(isinstance(part, Paragraph) and part.tone in asides for part in parts):
            shown.append(replace(section, parts=tuple(parts)))
    return shown
