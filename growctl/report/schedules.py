"""The schedules of the ladders: the first in full, the others by what they change."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from growctl.content.section import Cell, Column, Listing, Paragraph, Section, Table
from growctl.doctor.redaction import REMOVED
from growctl.report.commands import HIDDEN, secrets_only
from growctl.report.read import RunReport
from growctl.runs_dir import RunPaths
from model.errors import UserError
from stages.plain_yaml import UNREADABLE, parse, read_text

_KIND = "schedule"
_MOST_CHANGES = 12
"""A schedule that changes more is shown in full."""


def section(runs: Sequence[RunReport]) -> Section | None:
    """The schedules; None if none is here."""
    redact = secrets_only()
    texts = {run.name: redact(text) for run in runs if run.control is None and (text := _text(run.directory))}
    parts: list[Listing | Table | Paragraph] = []
    shown: dict[str, dict[str, str]] = {}
    """The settings of the schedules that are shown in full."""
    for name, text in texts.items():
        settings = _settings(text)
        found = ((other, changes(known, settings)) for other, known in shown.items() if settings)
        nearest = min(found, key=lambda pair: len(pair[1]), default=("", {}))
        if nearest[0] and len(nearest[1]) <= _MOST_CHANGES:
            parts.append(_table(name, *nearest))
        else:
            shown[name] = settings
            parts.append(Listing(f"schedule of {name}", text))
    if any(REMOVED in text for text in texts.values()):
        parts.append(Paragraph(HIDDEN, "note"))
    return Section("schedule", "Schedule", tuple(parts), in_terminal=False, is_detail=True) if parts else None


def changes(old: dict[str, str], new: dict[str, str]) -> dict[str, tuple[str, str]]:
    """The settings that differ, by dotted key, old and new; `-` stands for a missing one."""
    keys = [*old, *(key for key in new if key not in old)]
    pairs = {key: (old.get(key, "-"), new.get(key, "-")) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _table(name: str, other: str, changed: dict[str, tuple[str, str]]) -> Table:
    columns = [Column(text, is_number=False) for text in ("setting", other, name)]
    rows = [[Cell(key), *map(Cell, pair)] for key, pair in changed.items()]
    return Table.of(f"schedule-{name}", columns, rows, f"The schedule of {name} is that of {other}, except:")


def _text(run: Path) -> str:
    """The schedule of a run; empty if it is missing or unreadable."""
    try:
        return read_text(RunPaths(run).schedule, _KIND)
    except (OSError, UnicodeDecodeError, UserError):
        return ""


def _settings(text: str) -> dict[str, str]:
    """Every value of a schedule by its dotted key; empty if it is no YAML."""
    try:
        return dict(_flat("", parse(text, _KIND)))
    except (UserError, *UNREADABLE):
        return {}


def _flat(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in pairs:
            yield from _flat(f"{key}.{name}" if key else str(name), part)
    else:
        yield key, "null" if value is None else str(value)
