"""The console that every command prints to."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from growctl.text.escaping import visible

GOOD = "color(28)"
WARNING = "color(130)"
BAD = "color(160)"
BUSY = "color(31)"
FAINT = "color(244)"
"""The colours of growctl's output, each with a contrast of at least 3 against white and against black. The terminal's
own 16 colours are what its theme makes of them: yellow is often unreadable on white, blue on black."""


class Terminal(Console):
    """rich's console without markup and emoji, and with control characters in text escaped.

    Everything that rich prints, also inside tables, passes through `render`.
    """

    def __init__(self, *, stderr: bool = False, **settings: Any) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Renders like rich, with text escaped. rich's own control segments stay as they are."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


@dataclass(frozen=True)
class Verbatim:
    """A text as it is, for `Console.print(..., soft_wrap=True)`. rich would break its lines and turn its tabs
    into spaces. Control codes are shown as escapes."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        yield Segment(visible(self.text))
        yield Segment.line()
