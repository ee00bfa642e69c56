"""Finds the controls of a ladder whose folder was renamed: they keep their folders, with the ladder's former name."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from growctl.controls.generate import ControlPlan
from growctl.ledger.ledger import Ledger, LedgerError, RunEntry
from growctl.runs_dir import CONTROL_INFIX, RunPaths, RunsPaths


def in_their_folders(planned: Sequence[ControlPlan], ladder: RunPaths) -> list[ControlPlan]:
    """The `planned` controls of a ladder, each named as the folder that it has since the ladder was renamed."""
    renamed = renamed_controls(ladder)
    names = [plan.name.removeprefix(f"{ladder.directory.name}{CONTROL_INFIX}") for plan in planned]
    return [
        replace(plan, name=renamed[name], schedule=plan.schedule.model_copy(update={"name": renamed[name]}))
        if name in renamed
        else plan
        for plan, name in zip(planned, names, strict=True)
    ]


def renamed_controls(ladder: RunPaths) -> dict[str, str]:
    """The folders of the controls of a renamed ladder, by the part of their first names after CONTROL_INFIX.

    Empty for a ladder that still has its first name, and for a copy beside its original, which the controls belong to.
    """
    entry, runs = _entry(ladder), RunsPaths(ladder.directory.parent)
    if entry is None or entry.control or entry.name == ladder.directory.name:
        return {}
    original = _entry(runs.run(entry.name))
    if original and original.run_id == entry.run_id:
        return {}
    found = {}
    for run in runs.runs_with_ledgers():
        control = _entry(run)
        if control and control.control and control.ladder_id == entry.run_id:
            found[control.name.removeprefix(f"{control.control_of}{CONTROL_INFIX}")] = run.directory.name
    return found


def _entry(run: RunPaths) -> RunEntry | None:
    with suppress(LedgerError), Ledger.open(run.ledger, read_only=True) as ledger:
        return ledger.run()
    return None
