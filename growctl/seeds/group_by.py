"""Reads the values that `growctl report --group-by` groups runs by, from the schedule that each run recorded."""

from collections.abc import Iterator, Sequence
from typing import Any

from growctl.analysis.runs import RunReport
from growctl.runs_dir import RunPaths
from growctl.seeds.grouping import SCHEDULE, SEED, Grouping
from growctl.text.suggestion import nearest
from model.errors import UserError
from stages.plain_yaml import UNREADABLE, parse, read_text


class GroupByError(UserError):
    """There is nothing to group by that name."""


def read_grouping(runs: Sequence[RunReport], keys: Sequence[str]) -> Grouping:
    """What `--group-by` asks for: `seed`, `schedule` (as the user named it), or dotted keys of the schedules.

    A run whose schedule is not here, such as an imported one, has the values that its ledger records. Raises
    GroupByError for a key that is in none of the schedules.
    """
    ladders = [run for run in runs if run.control is None]
    values = {run.name: recorded_values(run) for run in ladders} if set(keys) - {SEED, SCHEDULE} else {}
    known = dict.fromkeys([SEED, SCHEDULE, *(key for found in values.values() for key in found)])
    for key in keys:
        if key not in known:
            raise GroupByError(
                f"--group-by {key!r}: must be {SEED}, {SCHEDULE} or a dotted key of the schedules of these runs; "
                f"{nearest(key, known)}"
            )
    chosen = dict.fromkeys(keys)
    return Grouping(
        tuple(chosen),
        {
            run.name: {
                key: (values.get(run.name, {}) | {SEED: run.seed, SCHEDULE: run.schedule}).get(key) for key in chosen
            }
            for run in ladders
        },
    )


def recorded_values(run: RunReport) -> dict[str, Any]:
    """The values of a run's schedule, by dotted key, entries of lists by number; else what its ledger records."""
    path = RunPaths(run.directory).schedule
    try:
        return dict(_leaves(parse(read_text(path, "schedule"), "schedule")))
    except FileNotFoundError:
        return run.conditions | run.overrides
    except (UserError, OSError, *UNREADABLE) as error:
        raise GroupByError(f"--group-by: {path} cannot be read: {error}") from None


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values in plain data, by dotted key; a list of plain values is one value, too."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if path and not (isinstance(value, dict) and value) and not _has_blocks(value):
        yield path, value
    for key, below in entries:
        yield from _leaves(below, f"{path}.{key}" if path else str(key))


def _has_blocks(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value)
