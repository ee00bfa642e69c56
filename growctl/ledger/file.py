"""The ledger's SQLite file: appends records, never changes them, and detects damage.

A record is a row of one table: its JSON, and a hash of that and of the previous row's hash. Opening the file checks all
of it: the pages and indexes (SQLite's own check), the exact schema, and the hashes. This detects a changed value, a
missing row and a truncated page. It does not detect an older version of the whole file; the runner then appends the
missing rows from metrics.jsonl. Views show the records of each type as a table of their own, for people who use SQL.
"""

import errno
import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter

from growctl.ledger.entries import (
    DERIVED,
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

_BUSY_SECONDS = 60.0
_COMPANIONS = ("-journal", "-wal", "-shm")
"""Suffixes of the files that SQLite keeps beside a database."""

TABLES: dict[str, tuple[type, tuple[str, ...]]] = {
    "run": (RunEntry, ("run_id", "conditions")),
    "stage": (StageEntry, ("name",)),
    "attempt": (AttemptEntry, ("attempt",)),
    "work": (WorkEntry, ("attempt", "first_step", "last_step", "num_records")),
    "evaluation": (EvaluationEntry, ("attempt", "step", "point")),
    "anomaly": (AnomalyEntry, ("attempt", "step", "seconds", "kind")),
    "score": (ScoreEntry, ("checkpoint", "evaluated_at", "task", "metric", "filter")),
}
"""The type of record that each view shows, and the fields that are unique together in a stage."""

_NAMES = {record: name for name, (record, _) in TABLES.items()}


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    records: Any = list.__class_getitem__(TABLES[name][0])
    return TypeAdapter(records)


def _view(name: str, record: type) -> str:
    """SQL that makes a view with a column for each stored field of a record, and one for each part of its FLOPs."""
    columns = []
    for field in fields(record):
        if field.type is Flops:
            columns += [(f"{field.name}_{part.name}", f"{field.name}.{part.name}") for part in fields(Flops)]
        elif field.metadata != DERIVED and field.name != "stage":
            columns.append((field.name, field.name))
    extracted = ", ".join(f"json_extract(body, '$.{path}') AS \"{column}\"" for column, path in columns)
    return f"CREATE VIEW {name} AS SELECT entry, stage, {extracted} FROM record WHERE type = '{name}'"


_SCHEMA = [
    "CREATE TABLE record (entry INTEGER PRIMARY KEY, type TEXT NOT NULL, stage TEXT NOT NULL, key TEXT NOT NULL, "
    "body TEXT NOT NULL, sha256 TEXT NOT NULL, UNIQUE (type, stage, key))",
    *(
        f"CREATE TRIGGER keeps_on_{verb} BEFORE {verb} ON record "
        "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        for verb in ("update", "delete")
    ),
    *(_view(name, record) for name, (record, _) in TABLES.items()),
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


_CHECKED: set[bytes] = set()
"""sha256 of the snapshots that this process has checked: a report opens a run's ledger several times."""


class LedgerFile:
    """An open ledger file: appends and queries rows."""

    def __init__(self, path: Path, read_only: bool) -> None:
        """Opens the file; creates it if it is missing, unless `read_only`, which writes nothing.

        Raises LedgerError if it is missing (read-only), BrokenLedger (a LedgerError) if it is damaged.
        """
        if read_only and not path.is_file():
            raise LedgerError(f"{path}: there is no ledger here; `growctl run` rebuilds it from metrics.jsonl")
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
                self._recognise()
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

    def content(self) -> bytes:
        """The bytes of a file with everything in the ledger, whole even if a runner appends to it meanwhile."""
        return self._connection.serialize()

    def query(self, sql: str, **values: Any) -> list[sqlite3.Row]:
        """Runs a statement and returns its rows."""
        with _explained(self.path):
            return self._connection.execute(sql, values).fetchall()

    def entries(self, record: type[Entry], stage: str | None = None) -> list[Entry]:
        """The records of one type, oldest first: all of them, or those of a stage."""
        sql = "SELECT body FROM record WHERE type = :type" + (" AND stage = :stage" if stage else "")
        bodies = self.query(f"{sql} ORDER BY entry", type=_NAMES[record], stage=stage)
        try:
            entries: list[Entry] = _adapter(_NAMES[record]).validate_json(f"[{','.join(body for (body,) in bodies)}]")
            return entries
        except ValueError as error:
            raise BrokenLedger(self.path, f"a record of type {_NAMES[record]} cannot be read") from error

    def append(self, entry: Any, once: bool = False) -> None:
        """Appends a record; needs an open transaction. `once`: skips a key that exists."""
        record, name = type(entry), _NAMES[type(entry)]
        derived = {field.name for field in fields(record) if field.metadata == DERIVED}
        body = _adapter(name).dump_json([entry], exclude={0: derived}).decode()[1:-1]
        key = json.dumps([getattr(entry, field) for field in TABLES[name][1]])
        values = (name, getattr(entry, "stage", ""), key, body)
        number, before = self._last
        row = (number + 1, *values, _row_hash(before, *values))
        with _explained(self.path):
            sql = f"INSERT INTO record VALUES (?, ?, ?, ?, ?, ?){' ON CONFLICT DO NOTHING' if once else ''}"
            added = self._connection.execute(sql, row).rowcount
        if added:
            self._last = (row[0], row[-1])

    def last_entry(self) -> tuple[int, str]:
        """Number and hash of the last row; 0 without rows."""
        last = self.query("SELECT entry, sha256 FROM record ORDER BY entry DESC LIMIT 1")
        return tuple(last[0]) if last else (0, "")

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

    def _recognise(self) -> None:
        """Makes the tables of a new file, and checks a file that has some.

        Raises NothingRecorded for an empty file that cannot be written, BrokenLedger for a damaged one.
        """
        if not self._tables():
            if self.read_only:
                raise NothingRecorded(self.path)
            with self.transaction():
                for statement in _SCHEMA:
                    self.query(statement)
        content = hashlib.sha256(self._connection.serialize()).digest() if self.read_only else b""
        if content in _CHECKED:
            return
        self.query("BEGIN")  # so that no writer changes the file during the checks
        if {row[0] for row in self.query("SELECT sql FROM sqlite_master WHERE sql NOT NULL")} != set(_SCHEMA):
            raise BrokenLedger(self.path, "its tables are not those of a ledger of this version of growctl")
        for problem in self.query("PRAGMA integrity_check(1)"):
            if problem[0] != "ok":
                raise BrokenLedger(self.path, str(problem[0]).splitlines()[-1])
        with _explained(self.path):
            before = ""
            rows = self._connection.execute("SELECT entry, type, stage, key, body, sha256 FROM record ORDER BY entry")
            for number, (entry, *values, sha256) in enumerate(rows, 1):
                if entry != number:
                    raise BrokenLedger(self.path, f"row {number} is missing")
                if _row_hash(before, *values) != sha256:
                    raise BrokenLedger(self.path, f"row {number}, of {values[0]}, does not match its hash")
                before = sha256
        self.query("COMMIT")
        if self.read_only:
            _CHECKED.add(content)

    def _tables(self) -> bool:
        return bool(self.query("SELECT 1 FROM sqlite_master LIMIT 1"))


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


def _row_hash(before: str, *values: str) -> str:
    """sha256 over the hash of the previous row and this row's values; JSON and names contain no line feed."""
    return hashlib.sha256("\n".join((before, *values)).encode()).hexdigest()


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
