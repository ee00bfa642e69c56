"""Writes the rows of ledgers as files for other programs, one file for each table."""

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from growctl.ledger.ledger import Ledger
from growctl.report.documents import for_spreadsheet
from growctl.runs.find import find_ledgers
from model.errors import UserError

Format = Literal["csv", "json", "parquet"]
Rows = list[dict[str, Any]]
Columns = dict[str, str]
"""Types of SQLite by the names of the columns."""


@dataclass(frozen=True)
class ExportedTable:
    """One table of the ledgers, as a file."""

    file: str
    """Its name in `path`."""

    num_rows: int


@dataclass(frozen=True)
class LedgerExportDocument:
    """The ledgers that were exported, and the files."""

    path: Path
    to: Format
    runs: tuple[str, ...]
    tables: dict[str, ExportedTable]
    """By the name of the table."""


def export_ledgers(runs_dir: Path, names: Sequence[str], to: Format, output: Path) -> LedgerExportDocument:
    """Writes the ledgers of the runs called `names`, or of all runs, into the new directory `output`.

    Each row begins with `run`, the name of the run's directory; a work row ends with `kept`, the share of its steps
    that no later attempt repeated. Raises UserError for an unknown run or without the package that `to` needs,
    LedgerError for a ledger that cannot be read.
    """
    write = {"csv": _write_csv, "json": _write_json, "parquet": _write_parquet}[to]
    if to == "parquet":
        _require_pyarrow()
    ledgers = find_ledgers(runs_dir, names)
    tables: dict[str, tuple[Columns, Rows]] = {}
    for name, path in ledgers.items():
        with Ledger.open(path, read_only=True) as ledger:
            ledger.run()
            for table, (columns, rows) in ledger.tables().items():
                known = tables.setdefault(table, ({"run": "TEXT"} | columns, []))
                known[1].extend({"run": name} | row for row in rows)
    output.parent.mkdir(parents=True, exist_ok=True)
    staging = output.with_name(f".{output.name}.{uuid4().hex[:8]}.tmp")
    staging.mkdir()
    try:
        for table, (columns, rows) in tables.items():
            write(staging / f"{table}.{to}", columns, rows)
        staging.rename(output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    written = {table: ExportedTable(f"{table}.{to}", len(rows)) for table, (_, rows) in tables.items()}
    return LedgerExportDocument(output, to, tuple(ledgers), written)


def _write_csv(path: Path, columns: Columns, rows: Rows) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: for_spreadsheet(value) for name, value in row.items()} for row in rows)


def _write_json(path: Path, columns: Columns, rows: Rows) -> None:
    path.write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _write_parquet(path: Path, columns: Columns, rows: Rows) -> None:
    import pyarrow
    from pyarrow import parquet

    kinds = {"TEXT": pyarrow.string(), "INTEGER": pyarrow.int64(), "REAL": pyarrow.float64()}
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path)


def _require_pyarrow() -> None:
    if find_spec("pyarrow") is None:
        raise UserError("--to parquet needs pyarrow; install it with `pip install 'growctl[parquet]'`")
