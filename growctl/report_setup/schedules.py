"""The schedules of the ladders: the first in full, the others by what they change."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from growctl.analysis.runs import RunReport
from growctl.report_setup.commands import HIDDEN, secrets_only
from growctl.runs_dir import RunPaths
from growctl.text.redaction import REMOVED
from growctl.text.section import Cell, Column, Listing, Paragraph, Section, Table
from model.errors import UserError
from stages.plain_yaml import UNREADABLE, parse, read_text

_KIND = "schedule"
_MOST_CHANGES = 12
"""A schedule that changes more is shown in full."""


def section(runs: Sequence[RunReport]) -> Section | None:
    """The schedules; None if none is here."""
    ladders = {run.name: found for run in runs if run.control is None and (found := _read(run.directory))}
    parts: list[Listing | Table | Paragraph] = []
    shown: dict[str, dict[str, str]] = {}
    """The settings of the schedules that are shown in full."""
    for name, (text, settings) in ladders.items():
        changed = {other: changes(known, settings) for other, known in shown.items()}
        nearest = min(changed, key=lambda other: len(changed[other]), default=None)
        if nearest is not None and len(changed[nearest]) <= _MOST_CHANGES:
            parts.append(_table(name, nearest, changed[nearest]))
        else:
            shown[name] = settings
            parts.append(Listing(f"schedule of {name}", text))
    if any(REMOVED in text for text, _ in ladders.values()):
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


def _read(run: Path) -> tuple[str, dict[str, str]] | None:
    """The schedule of a run without secrets: as text, and its values by dotted key; None if there is none to read."""
    try:
        text = read_text(RunPaths(run).schedule, _KIND)
        data = parse(text, _KIND)
    except (OSError, UserError, *UNREADABLE):
        return None
    clean = secrets_only().of_data(data)
    shown = text if clean == data else str(yaml.safe_dump(clean, sort_keys=False))
    return shown, dict(_flat("", clean))


def _flat(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict | list) and value:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in pairs:
            yield from _flat(f"{key}.{name}" if key else str(name), part)
    else:
        yield key, "null" if value is None else str(value)
