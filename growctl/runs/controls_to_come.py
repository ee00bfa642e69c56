"""Tells a report which controls its ladders still wait for."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from growctl.runs.runs import ControlToCome, RunReport
from growctl.runs.status import RunStatus, find_status
from growctl.runs_dir import RunPaths, RunsPaths

_OVER = ("finished", "imported")


def with_controls_to_come(runs: Sequence[RunReport], runs_dir: Path) -> list[RunReport]:
    """`runs` of `runs_dir`, each ladder with the controls that its schedule asks for and that are not finished."""
    waiting: dict[str, list[ControlToCome]] = {}
    for status in find_status(runs_dir, leave_out=_needless(runs, runs_dir)):
        if status.control and status.control_of and status.state not in _OVER:
            waiting.setdefault(status.control_of, []).append(_to_come(status))
    return [replace(run, controls_to_come=tuple(waiting.get(run.name, ()))) for run in runs]


def _needless(runs: Sequence[RunReport], runs_dir: Path) -> set[str]:
    """The runs whose state says nothing about controls to come: there may be hundreds, and each takes a while."""
    needed = {run.name for run in runs if not (run.finished if run.control else _begins_no_controls(run))}
    return {paths.directory.name for paths in RunsPaths(runs_dir).runs_with_ledgers()} - needed


def _begins_no_controls(ladder: RunReport) -> bool:
    return RunPaths(ladder.directory).no_controls.exists()


def _to_come(status: RunStatus) -> ControlToCome:
    sizes = [stage.num_parameters for stage in status.stages if not stage.branch_of]
    return ControlToCome(status.name, status.control or "", sizes[-1] if sizes else None, status.state)
