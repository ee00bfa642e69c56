"""The ledger's SQLite tables: appends rows, never changes them, and detects damage.

Every row carries its number in the ledger, counted from 1 over all tables, and a hash of its values and of the previous
row's hash. Opening the file checks all of it: the pages and indexes (SQLite's own check), the exact schema, the numbers
and the hashes. This detects a changed value, a missing row and a truncated page. It does not detect an older version of
the whole file; the runner then appends the missing rows from metrics.jsonl.
"""

import errno
import hashlib
import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from heapq import merge
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Self, TypeVar, get_args, get_type_hints

from pydantic import TypeAdapter

from growctl.ledger.entries import (
    AnomalyEntry,
    AttemptEntry,
    EvaluationEntry,
    RunEntry,
    ScoreEntry,
    StageEntry,
    WorkEntry,
)
from model.errors import UserError
from model.flops import Flops
from stages.checkpoint.directory import set_aside

Entry = TypeVar("Entry")

FORMAT_VERSION = 2
_APPLICATION_ID = 0x67726F77  # "grow": tells a ledger from any other SQLite file
_BUSY_SECONDS = 60.0
_COMPANIONS = ("-journal", "-wal", "-shm")
"""Suffixes of the files that SQLite keeps beside a database."""

TABLES: dict[str, tuple[type, str]] = {
    "run": (RunEntry, "run_id, conditions"),
    "stage": (StageEntry, "name"),
    "attempt": (AttemptEntry, "stage, attempt"),
    "work": (WorkEntry, "stage, attempt, first_step, last_step, num_records"),
    "evaluation": (EvaluationEntry, "stage, attempt, step, point"),
    "anomaly": (AnomalyEntry, "stage, attempt, step, seconds, kind"),
    "score": (ScoreEntry, "stage, checkpoint, evaluated_at, task, metric, filter"),
}
"""By the name of a table: the record that a row holds, and the columns that are unique together."""

_NAMES = {record: name for name, (record, _) in TABLES.items()}
_TYPES = {bool: "INTEGER", int: "INTEGER", float: "REAL", str: "TEXT", Flops: "FLOPS"}
_JSON = "TEXT AS JSON"


def _layout(record: type) -> dict[str, tuple[str, bool]]:
    """The stored fields of a record: their type in SQL, FLOPS or _JSON, and whether they may be null."""
    hints = get_type_hints(record)
    layout = {}
    for field in fields(record):
        if "derived" not in field.metadata:
            options = get_args(hints[field.name]) if isinstance(hints[field.name], UnionType) else [hints[field.name]]
            kind = next((_TYPES[option] for option in options if option in _TYPES), _JSON)
            layout[field.name] = (kind, NoneType in options)
    return layout


_LAYOUTS = {record: _layout(record) for record in _NAMES}


def _columns(record: type) -> str:
    """The columns of a record, for SQL. FLOPs have a column for each part."""
    columns = []
    for name, (kind, nullable) in _LAYOUTS[record].items():
        names = [f"{name}_{part.name}" for part in fields(Flops)] if kind == "FLOPS" else [name]
        sql = {"FLOPS": "REAL", _JSON: "TEXT"}.get(kind, kind) + ("" if nullable else " NOT NULL")
        columns += [f'"{column}" {sql}' for column in names]  # `group` is a word of SQL
    return ", ".join(columns)


def to_row(entry: Any) -> dict[str, Any]:
    """The columns and values of a record."""
    row: dict[str, Any] = {}
    for name, (kind, _) in _LAYOUTS[type(entry)].items():
        value = getattr(entry, name)
        if kind == "FLOPS":
            row |= {f"{name}_{part}": number for part, number in asdict(value).items()}
        elif kind == _JSON and value is not None:
            row[name] = json.dumps(asdict(value) if is_dataclass(value) else value)  # type: ignore[arg-type]
        else:
            row[name] = int(value) if isinstance(value, bool) else value
    return row


def from_row(record: type[Entry], row: sqlite3.Row) -> Entry:
    """The record in a row, without its derived fields."""
    values: dict[str, Any] = {}
    for name, (kind, _) in _LAYOUTS[record].items():
        if kind == "FLOPS":
            values[name] = {part.name: row[f"{name}_{part.name}"] for part in fields(Flops)}
        else:
            values[name] = json.loads(row[name]) if kind == _JSON and row[name] is not None else row[name]
    entry: Entry = _adapter(_NAMES[record]).validate_python(values)
    return entry


@cache
def _adapter(table: str) -> TypeAdapter[Any]:
    return TypeAdapter(TABLES[table][0])


_SCHEMA = [
    statement
    for table, (record, unique) in TABLES.items()
    for statement in (
        f"CREATE TABLE {table} "
        f"(entry INTEGER NOT NULL UNIQUE, sha256 TEXT NOT NULL, {_columns(record)}, UNIQUE ({unique}))",
        *(
            f"CREATE TRIGGER {table}_keeps_on_{verb} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: {table}'); END"
            for verb in ("update", "delete")
        ),
    )
]


_DISK = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_IOERR: errno.EIO}
"""Disk failures: these become OSError, because no input of the user causes them."""


class LedgerError(UserError):
    """The ledger cannot be used, or new values contradict those in it."""


class NothingRecorded(LedgerError):
    """The ledger has no run yet: its runner has only just created it."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: no run is recorded here yet")


class BrokenLedger(LedgerError):
    """The file is not a ledger, or is damaged."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path}: the ledger is broken: {why}; `growctl run` sets it aside and rebuilds it from metrics.jsonl"
        )
        self.why = why


_ENCODER = json.JSONEncoder(default=repr)
_CHECKED: set[bytes] = set()
"""sha256 of the snapshots that this process has checked: a report opens a run's ledger several times."""


class LedgerFile:
    """An open ledger file: appends and queries rows."""

    def __init__(self, path: Path, read_only: bool) -> None:
        """Opens the file; creates it if it is missing, unless `read_only`.

        Raises LedgerError if it is missing (read-only) or has another format, BrokenLedger if it is damaged.
        """
        if read_only and not path.is_file():
            raise LedgerError(f"{path}: there is no ledger here")
        self.path, self.read_only = path, read_only
        self._last = (0, "")
        """Number and hash of the last row, while a transaction is open."""
        uri = f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        with _explained(path):
            self._connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
            try:
                if read_only:
                    self._connection = _snapshot(self._connection)
                self._connection.row_factory = sqlite3.Row
                self._recognise(read_only)
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def copy_to(self, path: Path) -> None:
        """Copies the ledger to the new file `path`, whole even if a runner appends to it meanwhile."""
        with _explained(path), closing(sqlite3.connect(path)) as copy:
            self._connection.backup(copy)

    def query(self, sql: str, **values: Any) -> list[sqlite3.Row]:
        """Runs a statement and returns its rows."""
        with _explained(self.path):
            return self._connection.execute(sql, values).fetchall()

    def entries(self, record: type[Entry], stage: str | None = None) -> list[Entry]:
        """The records of one type, oldest first: all of them, or those of a stage."""
        sql = f"SELECT * FROM {_NAMES[record]}" + (" WHERE stage = :stage" if stage else "")
        rows = self.query(f"{sql} ORDER BY entry", **{"stage": stage} if stage else {})
        try:
            return [from_row(record, row) for row in rows]
        except ValueError as error:
            raise BrokenLedger(self.path, f"a row of its table {_NAMES[record]} cannot be read") from error

    def append(self, entry: Any, once: bool = False) -> None:
        """Appends a record; needs an open transaction. `once`: skips a key that exists."""
        number, before = self._last
        table = _NAMES[type(entry)]
        row = {"entry": number + 1, **to_row(entry)}
        row["sha256"] = _row_hash(before, table, [row[name] for name in sorted(row)])
        columns = ", ".join(f'"{name}"' for name in row)
        sql = f"INSERT INTO {table} ({columns}) VALUES (:{', :'.join(row)})"
        with _explained(self.path):
            added = self._connection.execute(f"{sql} ON CONFLICT DO NOTHING" if once else sql, row).rowcount
        if added:
            self._last = (row["entry"], row["sha256"])

    def last_entry(self) -> tuple[int, str]:
        """Number and hash of the last row; 0 without rows."""
        newest = (f"SELECT * FROM (SELECT entry, sha256 FROM {t} ORDER BY entry DESC LIMIT 1)" for t in TABLES)
        return max((tuple(row) for row in self.query(" UNION ALL ".join(newest))), default=(0, ""))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits everything appended within the block, or nothing if the block raises."""
        self.query("BEGIN IMMEDIATE")
        try:
            self._last = self.last_entry() if self._tables() else (0, "")
            yield
            self.query("COMMIT")
        except BaseException:
            self._connection.rollback()
            raise

    def _recognise(self, read_only: bool) -> None:
        if not read_only and not self._tables():
            with self.transaction():
                self._create()
        content = hashlib.sha256(self._connection.serialize()).digest() if read_only else b""
        if content in _CHECKED:
            return
        self.query("BEGIN")  # so that no writer changes the file during the checks
        self._check()
        self.query("COMMIT")
        if read_only:
            _CHECKED.add(content)

    def _tables(self) -> set[str]:
        return {row[0] for row in self.query("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def _create(self) -> None:
        pragmas = (f"PRAGMA application_id = {_APPLICATION_ID}", f"PRAGMA user_version = {FORMAT_VERSION}")
        for statement in (*pragmas, *_SCHEMA):
            self.query(statement)

    def _check(self) -> None:
        """Raises LedgerError if the file has another format, BrokenLedger if it is damaged."""
        [(application,)] = self.query("PRAGMA application_id")
        [(version,)] = self.query("PRAGMA user_version")
        if self.path.stat().st_size == 0:
            raise NothingRecorded(self.path)
        if application != _APPLICATION_ID:
            raise BrokenLedger(self.path, "this is not a growctl ledger")
        schema = {row[0] for row in self.query("SELECT sql FROM sqlite_master WHERE sql NOT NULL")}
        if version != FORMAT_VERSION and schema != set(_SCHEMA):
            raise LedgerError(
                f"{self.path}: written in format {version} by another version of growctl; this one reads format "
                f"{FORMAT_VERSION}. Use the version that wrote it."
            )
        if version != FORMAT_VERSION or schema != set(_SCHEMA):
            raise BrokenLedger(self.path, "its tables are not those of its format")
        for problem in self.query("PRAGMA integrity_check(1)"):
            if problem[0] != "ok":
                raise BrokenLedger(self.path, str(problem[0]).splitlines()[-1])
        with _explained(self.path):
            self._check_rows()

    def _check_rows(self) -> None:
        count = sum(self.query(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES)
        before = ""
        for number, (entry, sha256, table, *values) in enumerate(merge(*map(self._rows, TABLES)), 1):
            if entry != number:
                raise BrokenLedger(self.path, f"row {number} of {count} is missing")
            if _row_hash(before, table, values) != sha256:
                raise BrokenLedger(self.path, f"row {number}, of {table}, does not match its hash")
            before = sha256

    def _rows(self, table: str) -> sqlite3.Cursor:
        """The rows of a table as tuples: number, hash, table, and the values that the hash covers."""
        names = sorted(row["name"] for row in self.query("SELECT name FROM pragma_table_info(:t)", t=table))
        quoted = ", ".join(f'"{name}"' for name in names if name != "sha256")
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor.execute(f"SELECT entry, sha256, '{table}', {quoted} FROM {table} ORDER BY entry")


def _snapshot(source: sqlite3.Connection) -> sqlite3.Connection:
    """A copy in memory of a file as it is at one moment; closes the file. A reader then neither sees half of what a
    runner appends, nor makes the runner wait."""
    copy = sqlite3.connect(":memory:", isolation_level=None)
    with closing(source):
        source.backup(copy)
    copy.execute("PRAGMA query_only = ON")
    return copy


def move_aside(path: Path) -> Path:
    """Renames a broken ledger to `broken-ledger.db` (numbered if needed), with SQLite's files beside it.

    Returns the new path. Deletes nothing.
    """
    target = set_aside(path)
    for companion in _COMPANIONS:
        beside = path.with_name(path.name + companion)
        if beside.exists():
            beside.rename(target.with_name(target.name + companion))
    return target


def _row_hash(before: str, table: str, values: Sequence[Any]) -> str:
    """sha256 over the hash of the previous row and this row's table and values, in the order of their names."""
    kept = [_as_kept(value) if value.__class__ is float else value for value in values]
    return hashlib.sha256(_ENCODER.encode([before, table, kept]).encode()).hexdigest()


def _as_kept(value: float) -> float | None:
    """A value in the form that SQLite returns for any column type: 2 for 2.0, None for NaN."""
    if math.isnan(value):
        return None
    return int(value) if value.is_integer() else value


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        why, code = str(error), getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
        if code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
            raise BrokenLedger(path, why) from error
        if code & 0xFF in _DISK:
            raise OSError(_DISK[code & 0xFF], why, str(path)) from error
        if code == sqlite3.SQLITE_READONLY_ROLLBACK:
            why = "its runner died while writing; `growctl run` repairs it when it resumes the run"
        raise LedgerError(f"{path}: the ledger cannot be used: {why}") from error
