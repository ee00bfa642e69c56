"""Where the files of a report go: into the run that it is about, or into a folder of their own."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from growctl.analysis.runs import RunReport
from growctl.runs_dir import ReportPaths, RunPaths, RunsPaths

ALL = "all"
"""The report on all runs of a runs directory, if they are not all of one set."""

_LONGEST_NAME = 100
_MOST_TITLES = 3
"""More ladders than this are counted in the title, not named."""


def report_folder(runs: Sequence[RunReport], runs_dir: Path, are_all: bool) -> ReportPaths:
    """Where the report on `runs` goes: one ladder's with its controls into the ladder's directory, that on several
    into a folder named for them. `are_all`: nobody named runs, so these are all of `runs_dir`.

    The report on a set of runs keeps its folder when the set grows; runs asked for by name have one of their own.
    """
    subjects = _subjects(runs)
    if len(subjects) == 1:
        return RunPaths(subjects[0].directory).report
    sets = {run.group for run in subjects}
    if are_all:
        return RunsPaths(runs_dir).report(file_name(sets.pop() or ALL if len(sets) == 1 else ALL))
    return RunsPaths(runs_dir).report(file_name("+".join(run.name for run in subjects)))


def report_title(runs: Sequence[RunReport]) -> str:
    """The title of the report on `runs`: what their ladders are called, sets of runs by the name of the set."""
    ladders = [run.group or run.name for run in runs if run.control is None] or [run.name for run in runs]
    names = list(dict.fromkeys(ladders))
    left_out = len(names) - _MOST_TITLES
    shown = ", ".join(names[:_MOST_TITLES]) + (f" and {left_out} more" if left_out > 0 else "")
    return f"The cost of growing: {shown}"


def _subjects(runs: Sequence[RunReport]) -> list[RunReport]:
    """What a report is about: its ladders, and controls whose ladder is not in it."""
    ladders = {run.name for run in runs if run.control is None}
    return [run for run in runs if run.control is None or run.control_of not in ladders]


def file_name(name: str) -> str:
    """`name` without characters that a folder should not have; a long one, or one that changes, ends in a hash."""
    plain = re.sub(r"[^\w.+=-]", "_", name, flags=re.ASCII).lstrip(".") or "_"
    if plain == name and len(plain) <= _LONGEST_NAME:
        return plain
    return f"{plain[: _LONGEST_NAME - 9]}-{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:8]}"
