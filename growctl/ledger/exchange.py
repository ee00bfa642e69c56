"""Ledgers in and out: export as one table, and import from other machines."""

import csv
import io
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """Writes the work of `ledgers`, which are given by the name of the run, as a table: CSV or Parquet, as
    `output` ends.

    A row has the columns of a WorkEntry, with the run and the stage that it belongs to. Raises UserError for another
    ending, or without the package for Parquet, LedgerError for a ledger that cannot be read.
    """
    if output.suffix not in (".csv", ".parquet"):
        raise UserError(f"--output {output}: must end in .csv or .parquet")
    rows = [row for name, path in ledgers.items() for row in _work(name, path)]
    if output.suffix == ".parquet":
        content = _parquet(rows)
    else:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        content = text.getvalue().encode()
    output.parent.mkdir(parents=True, exist_ok=True)
    replace_file(output, content)
    return LedgerExportDocument(output, tuple(ledgers), len(rows))


def _parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    try:
        from pyarrow import Table, parquet
    except ImportError:
        raise UserError("a .parquet needs pyarrow; install it with `pip install 'growctl[parquet]'`") from None
    sink = io.BytesIO()
    parquet.write_table(Table.from_pylist(rows), sink)
    return sink.getvalue()


def _work(name: str, path: Path) -> Iterator[dict[str, Any]]:
    with Ledger(path, read_only=True) as ledger:
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
    """A ledger that was copied into the runs directory."""

    name: str
    """The name of its run, here."""
    run_id: str
    source: Path
    path: Path
    """The ledger here."""


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
    found: dict[str, ImportedLedger] = {}
    for path in dict.fromkeys(path for source in sources for path in _ledgers(source)):
        with Ledger(path, read_only=True) as ledger:
            name = prefix + ledger.run().name
            here = RunsPaths(runs_dir).run(name)
            if not RUN_NAME.fullmatch(name):
                raise UserError(f"{path}: no run can be named {name!r}: must be {NAME_ALLOWED}")
            if name in found or not _may_become(ledger, here):
                taken = found[name].source if name in found else here.directory
                advice = f"give {'another' if prefix else 'a'} --prefix, such as --prefix machine-2-"
                raise UserError(
                    f"{path}: {taken} is another run named {name!r}, or has rows that this one lacks; {advice}"
                )
            found[name] = ImportedLedger(name, ledger.run().run_id, path, here.ledger)
    for entry in found.values():
        run = RunPaths(entry.path.parent)
        run.directory.mkdir(parents=True, exist_ok=True)
        origin = {"source": str(entry.source.absolute()), "imported_at": utc_now()}
        write_file(run.imported, json.dumps(origin, indent=1).encode() + b"\n")
        with Ledger(entry.source, read_only=True) as ledger:
            replace_file(entry.path, ledger.content())
    return LedgerImportDocument(runs_dir, tuple(found.values()))


def _ledgers(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    own = RunPaths(source).ledger
    ledgers = [own] if own.is_file() else [run.ledger for run in RunsPaths(source).runs_with_ledgers()]
    if not ledgers:
        raise UserError(f"{source}: no ledger here; give a ledger.db, the directory of a run, or a runs directory")
    return ledgers


def _may_become(ledger: Ledger, run: RunPaths) -> bool:
    """Whether `run` is not there, or is an earlier import of the same ledger."""
    if not os.path.lexists(run.directory):
        return True
    if not run.imported.exists() or not run.ledger.is_file():
        return False
    with Ledger(run.ledger, read_only=True) as present:
        return ledger.holds(present)
