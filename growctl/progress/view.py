"""What a terminal shows of a run: the table of its stages, and the facts of the one that trains now."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from growctl.progress.facts import rows
from growctl.progress.ladder import LadderProgress
from growctl.progress.stage_table import stage_table

MESSAGE_LINES = 3
"""Lines of the terminal that stay free for messages above the view."""


class View:
    """The view of a run, laid out for the width and height of the terminal that shows it."""

    def __init__(self, ladder: LadderProgress, phase: str = "", *, whole: bool = False) -> None:
        """`phase`: what happens beside training. `whole`: show all stages, on a terminal that scrolls."""
        self._ladder, self._phase, self._whole = ladder, phase, whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        facts = _facts(self._ladder)
        around = len(console.render_lines(facts, options)) + 2 + bool(self._phase)  # a title and an empty line
        num_lines = None if self._whole else options.max_height - around - MESSAGE_LINES
        yield Text(self._ladder.name, "bold", overflow="fold")
        yield stage_table(self._ladder, options.max_width, num_lines)
        yield Text()
        yield facts
        if self._phase:
            yield Text(self._phase)


def _facts(ladder: LadderProgress) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for label, text in rows(ladder):
        table.add_row(Text(label, "bold"), Text(text))
    return table
