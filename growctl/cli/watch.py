"""Shows a report on the terminal's other screen and draws it again while runs go on."""

import time
from collections.abc import Callable, Sequence

from rich.console import Group
from rich.live import Live
from rich.text import Text

from growctl.content.section import Section
from growctl.content.terminal import print_sections
from growctl.ledger.ledger import LedgerError
from growctl.run import signals
from growctl.text.colours import FAINT, WARNING
from growctl.text.console import Terminal
from model.errors import UserError

SECONDS = 3.0
"""Between two looks at the ledgers."""


def watch_report(
    report: Callable[[], Sequence[Section]],
    console: Terminal,
    wait: Callable[[float], None] = time.sleep,
    *,
    details: bool = False,
) -> None:
    """Draws `report` until Ctrl-C, which leaves the last one on the screen. Raises what the first one raises."""

    def frame() -> Group:
        return _frame(sections, problem, console, details=details)

    sections, problem = report(), ""
    try:
        with Live(frame(), console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(frame(), refresh=True)
                wait(SECONDS)
                try:
                    sections, problem = report(), ""
                except (LedgerError, UserError) as error:
                    problem = str(error)
    except (KeyboardInterrupt, signals.Stopped) as stop:
        print_sections(sections, console, details=details)
        if isinstance(stop, signals.Stopped) and stop.exit_code != 130:
            raise


def _frame(sections: Sequence[Section], problem: str, console: Terminal, *, details: bool) -> Group:
    """The report cut to the screen's height, with a last line that says so."""
    printer = Terminal(width=console.width, force_terminal=True, color_system="256")
    with printer.capture() as captured:
        print_sections(sections, printer, details=details)
    lines = Text.from_ansi(captured.get()).split()
    room = max(1, console.height - 2)
    note = f"{time.strftime('%H:%M:%S')}. Ctrl-C ends."
    if len(lines) > room:
        note += f" {len(lines) - room} lines more need a taller terminal."
    below = Text(f"Not read again: {problem}", WARNING) if problem else Text(note, FAINT)
    below.truncate(console.width)
    return Group(*lines[:room], below)
