"""The parts of a report as data: each topic writes sections, and the terminal, the page and the files show them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from growctl.content.chart import Chart

Tone = Literal["plain", "heading", "strong", "note", "warning"]


@dataclass(frozen=True)
class Paragraph:
    """One or more sentences of plain text."""

    text: str
    tone: Tone = "plain"
    """`heading`: what the parts below it are about. `strong`: the result. `note`: an aside. `warning`: a reason to
    doubt the result."""


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    heading: str
    is_number: bool = True
    """Numbers align right, text left."""
    drop: int = 0
    """The order in which a narrow terminal drops columns: 1 goes first; 0 stays."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str
    value: float | None = None
    """The exact figure, to sort by and to export; None for text and for unknown figures."""
    why: str = ""
    """Why it is empty or unusual, in a sentence."""


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
    """Its name in file names and links, such as `stages`."""
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


Part = Paragraph | Table | Chart | Listing


@dataclass(frozen=True)
class Section:
    """One topic of a report."""

    key: str
    """Its name in links, such as `equal-loss`."""
    heading: str
    parts: tuple[Part, ...]
    in_terminal: bool = True
    """Whether the terminal shows it without `--details` (always without its charts); the page shows every section."""
    is_detail: bool = False
    """Whether the page shows it folded, for those who ask."""
