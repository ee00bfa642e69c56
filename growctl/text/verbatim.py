"""Prints a text as it is: rich would break its lines and turn its tabs into spaces."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.segment import Segment

from growctl.text.escaping import visible


@dataclass(frozen=True)
class Verbatim:
    """A text for `Console.print(..., soft_wrap=True)`. Control codes are shown as escapes."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        yield Segment(visible(self.text))
        yield Segment.line()
