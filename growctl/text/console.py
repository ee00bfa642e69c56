"""The console of every command."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from growctl.text.escaping import visible


class Terminal(Console):
    """rich's console, to which text is only text: brackets and colons in it mean nothing, and it commands nothing.

    Everything that is printed, however deep in a table, comes through `render`.
    """

    def __init__(self, *, stderr: bool = False, **settings: Any) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich's. Segments of its own that command the terminal stay as they are."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
