"""What `growctl report` is asked to write beside the page: figures, as which kinds of files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from growctl.report.drawing import FIGURE_FORMATS, FigureFormat, FigureStyle
from model.errors import UserError

Kind = TypeVar("Kind", bound=str)


@dataclass(frozen=True)
class Extras:
    """What to write beside the page, its table and its chart."""

    figures: tuple[FigureFormat, ...] = ()
    """Every chart on each of its x axes, as these kinds of files."""
    style: FigureStyle = "screen"

    @classmethod
    def read(cls, figures: str | None, style: FigureStyle | None) -> "Extras":
        """What the options of `growctl report` ask for. Raises UserError for a kind of file that is not known."""
        kinds = _kinds("--figures", figures, FIGURE_FORMATS)
        return cls(kinds or (("png",) if style else ()), style or "screen")


def _kinds(option: str, value: str | None, known: Sequence[Kind]) -> tuple[Kind, ...]:
    """The kinds of files in `value`, separated by commas."""
    names = [name.strip().lower() for name in (value or "").split(",") if name.strip()]
    if value is not None and not names:
        raise UserError(f"{option} {value!r}: the list is empty; allowed are {', '.join(known)}, separated by commas")
    for name in names:
        if name not in known:
            raise UserError(f"{option} {name!r}: allowed are {', '.join(known)}, separated by commas")
    return tuple(kind for kind in known if kind in names)
