"""Finds the controls of a ladder whose folder was renamed: they keep their folders, with the ladder's former name."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from growctl.ladder.controls import ControlPlan
from growctl.ledger.entries import RunEntry
from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
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
    return {part: folders[0] for part, folders in _found_controls(ladder).items()}


def further_controls(ladder: RunPaths) -> dict[str, str]:
    """The folders of controls that are not among `renamed_controls`, because another does the same: that one's folder.

    Once the original of a copied ladder is gone, the copy has its own controls and the original's.
    """
    return {other: first for first, *others in _found_controls(ladder).values() for other in others}


def _found_controls(ladder: RunPaths) -> dict[str, list[str]]:
    """The folders of `renamed_controls`, several if several do the same: first those that the ladder itself trained."""
    entry, runs = _entry(ladder), RunsPaths(ladder.directory.parent)
    if entry is None or entry.control or entry.name == ladder.directory.name:
        return {}
    original = _entry(runs.run(entry.name))
    if original and original.run_id == entry.run_id:
        return {}
    found: dict[str, list[tuple[bool, bool, str]]] = {}
    for run in runs.runs_with_ledgers():
        control = _entry(run)
        if control and control.control and control.ladder_id == entry.run_id:
            place = (control.control_of != ladder.directory.name, control.control_of != entry.name, run.directory.name)
            found.setdefault(control.name.removeprefix(f"{control.control_of}{CONTROL_INFIX}"), []).append(place)
    return {part: [folder for *_, folder in sorted(places)] for part, places in found.items()}


def _entry(run: RunPaths) -> RunEntry | None:
    with suppress(LedgerError, OSError):
        state = run.ledger.stat()
        return _read_entry(run.ledger, (state.st_ino, state.st_mtime_ns, state.st_size))
    return None


@lru_cache(maxsize=4096)
def _read_entry(ledger: Path, _: tuple[int, int, int]) -> RunEntry:
    """The run of a ledger, which never changes. Each renamed ladder looks at all runs, so each is read once."""
    with Ledger.open(ledger, read_only=True) as opened:
        return opened.run()
