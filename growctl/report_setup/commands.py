"""The commands that started the runs, as they recorded them, and the command of this report."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace

from growctl.analysis.runs import RunReport
from growctl.ledger.starts import read_starts
from growctl.runs_dir import RunPaths
from growctl.text.redaction import REMOVED, Redaction
from growctl.text.section import Listing, Paragraph, Section

HIDDEN = f"What looks like a secret, such as a variable in launch.environment, is replaced by {REMOVED}."
_NOT_TEXT = "samples.prompts"
"""The override whose value the report shows elsewhere anyway."""


def secrets_only() -> Redaction:
    """Removes what looks like a secret, and home directories, but no names: runs may be called like their user."""
    return replace(Redaction.of(os.environ), users=())


def section(runs: Sequence[RunReport], report: Sequence[str] = ()) -> Section | None:
    """The commands of each ladder, each once, and the command `report`; None if none is known."""
    redact = secrets_only()

    def shown(command: Sequence[str]) -> str:
        return shlex.join([word if word.startswith(_NOT_TEXT) else redact(word) for word in command])

    parts: list[Listing | Paragraph] = []
    unknown = []
    for ladder in (run for run in runs if run.control is None):
        dates: dict[str, list[str]] = {}
        for start in read_starts(RunPaths(ladder.directory)):
            dates.setdefault(shown(start.command), []).append(start.at)
        parts += [Listing(_label(ladder.name, at), command, is_command=True) for command, at in dates.items()]
        unknown += [ladder.name] if not dates else []
    if unknown:
        parts += [Paragraph(f"No start was recorded of {', '.join(unknown)}.", "note")]
    if report:
        parts += [Listing("this report", shown(report), is_command=True)]
    if any(REMOVED in part.text for part in parts):
        parts += [Paragraph(HIDDEN, "note")]
    return Section("commands", "Commands", tuple(parts), in_terminal=False) if parts else None


def _label(name: str, dates: Sequence[str]) -> str:
    again = f", and {len(dates) - 1} more times until {dates[-1]}" if len(dates) > 1 else ""
    return f"{name}, started {dates[0]}{again}"
