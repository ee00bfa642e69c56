"""Brings ledgers of other machines into a runs directory, each as a run of its own without checkpoints."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from growctl.ledger.books import utc_now
from growctl.ledger.ledger import Ledger
from growctl.runs_dir import NAME_ALLOWED, RUN_NAME, RunPaths, RunsPaths
from model.errors import UserError
from stages.checkpoint.files import write_file


@dataclass(frozen=True)
class ImportedLedger:
    """What happened to a ledger."""

    name: str
    """The name of its run, here."""

    run_id: str
    source: Path
    path: Path
    """The ledger here."""

    action: Literal["imported", "updated", "unchanged"]
    """`updated`: the ledger here was an earlier copy. `unchanged`: the run is here already, with all that `source`
    says."""


@dataclass(frozen=True)
class LedgerImportDocument:
    """The ledgers that were imported."""

    runs_dir: Path
    ledgers: tuple[ImportedLedger, ...]


@dataclass(frozen=True)
class ImportMark:
    """What imported.json says."""

    source: str
    imported_at: str
    """ISO 8601, in UTC."""


def import_ledgers(sources: Sequence[Path], runs_dir: Path, prefix: str = "") -> LedgerImportDocument:
    """Copies the ledgers of `sources` into `runs_dir`, and opens them only for reading.

    A source is a ledger, a run's directory or a runs directory. Each ledger becomes a run with the name that it was
    started with, after `prefix`. A ledger that was imported before is replaced if the new one has all its rows. Checks
    all of them before the first is copied: raises LedgerError for one that is damaged, UserError if there is none, or
    if its name is taken by another run.
    """
    found = [path for source in sources for path in _ledgers(source)]
    planned: dict[str, ImportedLedger] = {}
    for path in found:
        entry = _planned(path, runs_dir, prefix)
        other = planned.setdefault(entry.name, entry)
        if other is not entry and (other.run_id != entry.run_id or other.source.resolve() != path.resolve()):
            raise UserError(f"{other.source} and {path} are both of a run named {entry.name!r}; {_advice(prefix)}")
    for entry in planned.values():
        if entry.action != "unchanged":
            _copy(entry)
    return LedgerImportDocument(runs_dir, tuple(planned.values()))


def _ledgers(source: Path) -> list[Path]:
    """The ledgers in a source."""
    if source.is_file():
        return [source]
    own = RunPaths(source).ledger
    found = [own] if own.is_file() else [run.ledger for run in RunsPaths(source).runs_with_ledgers()]
    if not found:
        what = "there is no ledger in it" if source.is_dir() else "there is nothing here"
        raise UserError(f"{source}: {what}; give a ledger.db, the directory of a run, or a runs directory")
    return found


def _planned(path: Path, runs_dir: Path, prefix: str) -> ImportedLedger:
    """What is to happen to the ledger in the file `path`. Raises as `import_ledgers` does."""
    with Ledger.open(path, read_only=True) as ledger:
        run = ledger.run()
        name = prefix + run.name
        if not RUN_NAME.fullmatch(name):
            raise UserError(f"{path}: no run can be named {name!r}: must be {NAME_ALLOWED}")
        here = RunsPaths(runs_dir).run(name)
        entry = ImportedLedger(name, run.run_id, path, here.ledger, "imported")
        if not os.path.lexists(here.directory):
            return entry
        if not here.ledger.is_file():
            raise UserError(f"{path}: {here.directory} exists and is no imported ledger; {_advice(prefix)}")
        with Ledger.open(here.ledger, read_only=True) as known:
            if known.run().run_id != run.run_id:
                raise UserError(f"{path}: another run is named {name!r} in {runs_dir}; {_advice(prefix)}")
            if known.holds(ledger):
                return ImportedLedger(name, run.run_id, path, here.ledger, "unchanged")
            if not here.imported.exists():
                raise UserError(f"{path}: {here.directory} is this run itself, and not an imported ledger")
            if not ledger.holds(known):
                raise UserError(f"{path}: {here.ledger} has rows that this ledger of the same run lacks")
        return ImportedLedger(name, run.run_id, path, here.ledger, "updated")


def _advice(prefix: str) -> str:
    return f"give {'another' if prefix else 'a'} --prefix, such as --prefix machine-2-"


def _copy(entry: ImportedLedger) -> None:
    """Copies a ledger, and checks the copy before it gets its name."""
    run = RunPaths(entry.path.parent)
    run.directory.mkdir(parents=True, exist_ok=True)
    mark = ImportMark(str(entry.source.absolute()), utc_now())
    write_file(run.imported, json.dumps(asdict(mark), indent=1).encode() + b"\n")
    temporary = entry.path.with_name(f".{entry.path.name}.{os.getpid()}.tmp")
    try:
        with Ledger.open(entry.source, read_only=True) as ledger:
            ledger.copy_to(temporary)
        Ledger.open(temporary, read_only=True).close()
        os.replace(temporary, entry.path)
    finally:
        temporary.unlink(missing_ok=True)
