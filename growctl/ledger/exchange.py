"""Ledgers in and out: export as one table, and import from other machines."""

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from growctl.ledger.books import utc_now
from growctl.ledger.ledger import Ledger
from growctl.runs_dir import NAME_ALLOWED, RUN_NAME, RunPaths, RunsPaths
from growctl.whole_file import replace_file
from model.errors import UserError
from stages.checkpoint.files import write_file


@dataclass(frozen=True)
class LedgerExportDocument:
    """The table that was written."""

    path: Path
    runs: tuple[str, ...]
    num_rows: int


def export_ledgers(ledgers: dict[str, Path], output: Path) -> LedgerExportDocument:
    """Writes the work of `ledgers`, which are given by the name of the run, as a CSV table.

    A row has the columns of a WorkEntry, with the run and the stage that it belongs to. Raises LedgerError for a ledger
    that cannot be read.
    """
    rows = [row for name, path in ledgers.items() for row in _work(name, path)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    output.parent.mkdir(parents=True, exist_ok=True)
    replace_file(output, text.getvalue().encode())
    return LedgerExportDocument(output, tuple(ledgers), len(rows))


def _work(name: str, path: Path) -> Iterator[dict[str, Any]]:
    with Ledger.open(path, read_only=True) as ledger:
        run = ledger.run()
        for stage in ledger.stages():
            of_run = {"run": name, "control": run.control, "control_of": run.control_of, "seed": run.seed}
            of_stage = {"num_parameters": stage.num_parameters, "branch_of": stage.branch_of}
            rows = ledger.query("SELECT * FROM work WHERE stage = :stage ORDER BY entry", stage=stage.name)
            for row, work in zip(rows, ledger.work(stage.name), strict=True):
                costs = dict(row) | {"kept": work.kept, "rolled_back": work.rolled_back}
                del costs["entry"]
                yield of_run | of_stage | costs


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


def import_ledgers(sources: Sequence[Path], runs_dir: Path, prefix: str = "") -> LedgerImportDocument:
    """Copies the ledgers of `sources` into `runs_dir`, and opens them only for reading.

    A source is a ledger, a run's directory or a runs directory. Each ledger becomes a run with the name that it was
    started with, after `prefix`. A ledger that was imported before is replaced if the new one has all its rows. Checks
    all of them before the first is copied: raises LedgerError for one that is damaged, UserError if there is none, or
    if its name is taken by another run.
    """
    planned: dict[str, ImportedLedger] = {}
    for path in dict.fromkeys(path for source in sources for path in _ledgers(source)):
        entry = _planned(path, runs_dir, prefix)
        other = planned.setdefault(entry.name, entry)
        if other.source.resolve() != path.resolve():
            raise UserError(f"{other.source} and {path} are both of a run named {entry.name!r}; {_advice(prefix)}")
    for entry in planned.values():
        if entry.action != "unchanged":
            run = RunPaths(entry.path.parent)
            run.directory.mkdir(parents=True, exist_ok=True)
            origin = {"source": str(entry.source.absolute()), "imported_at": utc_now()}
            write_file(run.imported, json.dumps(origin, indent=1).encode() + b"\n")
            with Ledger.open(entry.source, read_only=True) as ledger:
                replace_file(entry.path, ledger.content())
    return LedgerImportDocument(runs_dir, tuple(planned.values()))


def _ledgers(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    own = RunPaths(source).ledger
    ledgers = [own] if own.is_file() else [run.ledger for run in RunsPaths(source).runs_with_ledgers()]
    if not ledgers:
        raise UserError(f"{source}: no ledger here; give a ledger.db, the directory of a run, or a runs directory")
    return ledgers


def _planned(path: Path, runs_dir: Path, prefix: str) -> ImportedLedger:
    """What is to happen to the ledger in the file `path`. Raises as `import_ledgers` does."""
    with Ledger.open(path, read_only=True) as ledger:
        run = ledger.run()
        name = prefix + run.name
        if not RUN_NAME.fullmatch(name):
            raise UserError(f"{path}: no run can be named {name!r}: must be {NAME_ALLOWED}")
        here = RunsPaths(runs_dir).run(name)
        action: Literal["imported", "updated", "unchanged"] = "imported"
        if here.ledger.is_file():
            with Ledger.open(here.ledger, read_only=True) as present:
                if present.run().run_id != run.run_id:
                    raise UserError(f"{path}: another run is named {name!r} in {runs_dir}; {_advice(prefix)}")
                action = "unchanged" if present.holds(ledger) else "updated"
                if action == "updated" and not (here.imported.exists() and ledger.holds(present)):
                    raise UserError(f"{path}: {here.ledger} is this run itself, or has rows that this ledger lacks")
        elif os.path.lexists(here.directory):
            raise UserError(f"{path}: {here.directory} exists and is no imported ledger; {_advice(prefix)}")
        return ImportedLedger(name, run.run_id, path, here.ledger, action)


def _advice(prefix: str) -> str:
    return f"give {'another' if prefix else 'a'} --prefix, such as --prefix machine-2-"
