"""Names in tables: a name that is too wide for its column breaks after a hyphen or slash, not within a word."""

import re
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.text import Text


class NameCell:
    """A table cell with a name, or several. Lines after the first are indented like the first."""

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
