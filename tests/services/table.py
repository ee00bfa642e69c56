"""The results of all checks as a table, for the terminal and in Markdown."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from growctl.text.formatting import duration
from tests.services.service import Result

_HEADINGS = ("service", "version", "check", "result", "seconds")


def print_table(results: Sequence[Result]) -> None:
    """Prints a row for each check."""
    table = Table(*_HEADINGS, title="growctl on real services")
    styles = {"passed": "green", "failed": "bold red", "skipped": "yellow"}
    for result in results:
        seen = f"{result.outcome}: {result.seen}"
        cells = (result.service, result.version, result.check, seen, f"{result.seconds:.1f}")
        table.add_row(*(cell.replace("[", r"\[") for cell in cells), style=styles[result.outcome])
    Console().print(table)


def markdown(results: Sequence[Result]) -> str:
    """The date, the versions and a row for each check, as docs/clusters.md shows them."""
    versions = dict.fromkeys(f"{result.service}: {result.version}" for result in results if result.version != "-")
    lines = [f"Tried on {datetime.now(UTC):%d %B %Y}. " + ". ".join(versions) + ".", ""]
    lines += ["| service | check | result | time |", "|---|---|---|---|"]
    for result in results:
        seen = result.seen if result.outcome == "passed" else f"{result.outcome}: {result.seen}"
        cells = (result.service, result.check, seen, duration(result.seconds))
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines)
