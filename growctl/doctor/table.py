"""Formats doctor's checks in 80 columns."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from growctl.doctor.check import Check
from growctl.text.colours import BAD, GOOD, WARNING

_STYLES = {"ok": GOOD, "warning": WARNING, "failed": f"bold {BAD}"}


def print_check(check: Check, console: Console) -> None:
    """Prints one check, with the fix on a separate line."""
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=7)
    row.add_column(width=14)
    row.add_column(overflow="fold")
    row.add_row(Text(check.state, _STYLES[check.state]), Text(check.name), Text(check.found))
    if check.fix:
        row.add_row("", "", Text(f"fix: {check.fix}", _STYLES[check.state]))
    console.print(row)


def print_summary(checks: Sequence[Check], console: Console) -> None:
    """Prints how many checks are ok, warnings and failures."""
    states = Counter(check.state for check in checks)
    warnings = "1 warning" if states["warning"] == 1 else f"{states['warning']} warnings"  # no import: it may fail
    console.print(f"\n{states['ok']} ok, {warnings}, {states['failed']} failed")
    if checks[0].state == "failed" and len(checks) == 1:
        console.print("Fix this first; growctl doctor can then run the other checks.")
