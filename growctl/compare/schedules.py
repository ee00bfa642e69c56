"""The settings in which the resolved schedules of two runs differ, in the order of docs/keys.md."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from growctl.analysis.runs import RunReport
from growctl.runs_dir import RunPaths
from growctl.schedule.load import load_resolved
from growctl.schema.blocks import Schedule
from growctl.schema.tree import block_in, user_keys

_OWN = ("name",)
"""Keys that tell runs apart and nothing else."""


@dataclass(frozen=True)
class SettingDifference:
    """A key of the schedule that has different values in two runs, A and B."""

    key: str
    """Its dotted path."""
    a: Any
    """As plain data; None where it is not set."""
    b: Any
    unit: str | None
    """The unit of its numbers; None if it has none."""


def differing_settings(a: RunReport, b: RunReport) -> tuple[SettingDifference, ...] | None:
    """The settings that differ; None if a run has no schedule here, because only its ledger was imported.

    Raises ScheduleError if a schedule cannot be used.
    """
    paths = [RunPaths(run.directory).schedule for run in (a, b)]
    if not all(path.is_file() for path in paths):
        return None
    return between(*map(load_resolved, paths))


def between(a: Schedule, b: Schedule) -> tuple[SettingDifference, ...]:
    """The settings that differ between two schedules."""
    values, others = (schedule.model_dump(mode="json") for schedule in (a, b))
    return tuple(found for found in _between(Schedule, values, others, "") if found.key not in _OWN)


def _between(block: type[BaseModel], a: Any, b: Any, path: str) -> Iterator[SettingDifference]:
    """What differs between two blocks as plain data, its own keys before those of the blocks in it."""
    inner: list[tuple[type[BaseModel], bool, str]] = []
    for key, field in user_keys(block).items():
        nested, is_list = block_in(field.annotation)
        value, other = ((side or {}).get(key) if isinstance(side, dict) else None for side in (a, b))
        if nested and all(_is_block(side, is_list) for side in (value, other)):
            inner.append((nested, is_list, key))
        elif value != other:
            extra = field.json_schema_extra
            unit = extra.get("unit") if isinstance(extra, dict) else None
            known = str(unit) if unit and unit != "pure number" else None
            yield SettingDifference(f"{path}{key}", value, other, known)
    for nested, is_list, key in inner:
        value, other = a.get(key) if a else None, b.get(key) if b else None
        for index, (one, another) in enumerate(_aligned(value, other)) if is_list else [(None, (value, other))]:
            entry = f"{path}{key}." if index is None else f"{path}{key}.{index}."
            yield from _between(nested, one, another, entry)


def _is_block(value: Any, is_list: bool) -> bool:
    """Whether a value is a block, or a list of blocks, or not set."""
    if is_list and isinstance(value, list):
        return all(isinstance(entry, dict) for entry in value)
    return value is None or (not is_list and isinstance(value, dict))


def _aligned(a: Sequence[Any] | None, b: Sequence[Any] | None) -> list[tuple[Any, Any]]:
    """The entries of two lists by number; None where one list has no more."""
    values, others = list(a or ()), list(b or ())
    length = max(len(values), len(others))
    padded = [[*entries, *[None] * (length - len(entries))] for entries in (values, others)]
    return list(zip(*padded, strict=True))
