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
from heapq import merge
from pathlib import Path
from typing import Any

from model.errors import UserError
from stages.checkpoint.directory import set_aside

FORMAT_VERSION = 1
_APPLICATION_ID = 0x67726F77  # "grow": tells a ledger from any other SQLite file
_BUSY_SECONDS = 60.0
_COMPANIONS = ("-journal", "-wal", "-shm")
"""Suffixes of the files that SQLite keeps beside a database."""

_CHAIN = "entry INTEGER NOT NULL UNIQUE, sha256 TEXT NOT NULL"

TABLES = {
    "run": """
        id INTEGER PRIMARY KEY CHECK (id = 1), run_id TEXT NOT NULL, name TEXT NOT NULL, schedule TEXT NOT NULL,
        control TEXT, control_of TEXT, ladder_id TEXT, seed INTEGER NOT NULL, dataset TEXT NOT NULL,
        dataset_fingerprint TEXT NOT NULL, conditions TEXT NOT NULL, decays INTEGER NOT NULL, caveats TEXT NOT NULL,
        base TEXT NOT NULL, validation_documents INTEGER, validation_tokens INTEGER,
        training_tokens INTEGER, "group" TEXT,
        overrides TEXT NOT NULL, created_at TEXT NOT NULL""",
    "stage": """
        position INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, num_parameters INTEGER NOT NULL,
        num_embedding_parameters INTEGER NOT NULL, train_tokens INTEGER NOT NULL, num_steps INTEGER NOT NULL,
        tokens_per_step INTEGER NOT NULL, step_flops_parameters REAL NOT NULL, step_flops_attention REAL NOT NULL,
        step_flops_head REAL NOT NULL, evaluation_flops_per_token REAL NOT NULL,
        own_evaluation_flops_per_token REAL, sequence_length INTEGER, num_layers INTEGER,
        branch_of TEXT REFERENCES stage (name), decayed INTEGER NOT NULL""",
    "attempt": """
        stage TEXT NOT NULL REFERENCES stage (name), attempt INTEGER NOT NULL, first_step INTEGER NOT NULL,
        resumed_from INTEGER NOT NULL, PRIMARY KEY (stage, attempt)""",
    "work": """
        stage TEXT NOT NULL, attempt INTEGER NOT NULL, first_step INTEGER NOT NULL, last_step INTEGER NOT NULL,
        num_records INTEGER NOT NULL, closed_by TEXT NOT NULL, tokens INTEGER NOT NULL, flops_parameters REAL NOT NULL,
        flops_attention REAL NOT NULL, flops_head REAL NOT NULL, recomputed_flops REAL NOT NULL,
        evaluation_flops REAL NOT NULL, wall_seconds REAL NOT NULL, device_seconds REAL NOT NULL, step_seconds REAL,
        gpu_joules REAL, cpu_joules REAL,
        peak_gpu_bytes INTEGER, peak_resident_bytes INTEGER, device TEXT NOT NULL, num_devices INTEGER NOT NULL,
        precision TEXT NOT NULL, peak_flops REAL, price_per_device_hour REAL, paid_by TEXT, recorded_at TEXT NOT NULL,
        CHECK (first_step <= last_step),
        UNIQUE (stage, attempt, first_step, last_step, num_records),
        FOREIGN KEY (stage, attempt) REFERENCES attempt (stage, attempt)""",
    "evaluation": """
        stage TEXT NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL, point TEXT NOT NULL, loss REAL,
        perplexity REAL, bits_per_byte REAL, num_tokens INTEGER NOT NULL, precision TEXT NOT NULL, by_source TEXT,
        own_context_loss REAL, own_context_tokens INTEGER,
        UNIQUE (stage, attempt, step, point), FOREIGN KEY (stage, attempt) REFERENCES attempt (stage, attempt)""",
    "anomaly": """
        stage TEXT NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL, seconds REAL NOT NULL, kind TEXT NOT NULL,
        value REAL, threshold REAL, action TEXT NOT NULL, first_step INTEGER, num_steps INTEGER,
        UNIQUE (stage, attempt, step, seconds, kind),
        FOREIGN KEY (stage, attempt) REFERENCES attempt (stage, attempt)""",
    "score": """
        stage TEXT NOT NULL REFERENCES stage (name), checkpoint TEXT NOT NULL, manifest TEXT NOT NULL,
        evaluated_at TEXT NOT NULL, task TEXT NOT NULL, metric TEXT NOT NULL, filter TEXT NOT NULL, value REAL,
        standard_error REAL, num_samples INTEGER, num_shots INTEGER, version TEXT NOT NULL, settings TEXT NOT NULL,
        UNIQUE (stage, checkpoint, evaluated_at, task, metric, filter)""",
}
"""A work row covers the steps (first_step, last_step] of one attempt. `num_records` counts the attempt's lines of
metrics.jsonl that this row and the rows before it cover; `closed_by`: `checkpoint`, `end`, `interruption` or `reused`;
`paid_by`: the run that paid for reused steps, null for this run's own; `step_seconds`: wall seconds of its optimizer
steps alone; `recomputed_flops`: those that activation checkpointing added to `flops_*`, of this run's own steps;
`peak_flops`: of one device. `by_source` of an evaluation is JSON, a SourceEvaluation by the name of each
source of a mixture (growctl/ledger/entries.py). What is not known is null."""

_SCHEMA = [
    statement
    for table, columns in TABLES.items()
    for statement in (
        f"CREATE TABLE {table} ({_CHAIN}, {columns})",
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
_CHECKED: dict[Path, tuple[tuple[int, int, int] | None, ...]] = {}
"""The files that were read and found whole, in their state at that time: one command reads a ledger several times."""


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
        self._state = tuple(_state(path.with_name(path.name + end)) for end in ("", "-journal", "-wal"))
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

    def copy_to(self, path: Path) -> None:
        """Copies the file as it is at one moment to the new file `path`."""
        with _explained(path), closing(sqlite3.connect(path)) as copy:
            self._connection.backup(copy)

    def query(self, sql: str, **values: Any) -> list[sqlite3.Row]:
        """Runs a statement and returns its rows."""
        with _explained(self.path):
            return self._connection.execute(sql, values).fetchall()

    def append(self, table: str, row: dict[str, Any], once: bool = False) -> None:
        """Appends a row with a value for every column; needs an open transaction. `once`: skips a key that exists."""
        number, before = self._last
        row = {"entry": number + 1, **row}
        row["sha256"] = _row_hash(before, table, [row[name] for name in sorted(row)])
        columns = ", ".join(f'"{name}"' for name in row)  # `group` is a word of SQL
        sql = f"INSERT INTO {table} ({columns}) VALUES (:{', :'.join(row)})"
        with _explained(self.path):
            added = self._connection.execute(f"{sql} ON CONFLICT DO NOTHING" if once else sql, row).rowcount
        if added:
            self._last = (row["entry"], row["sha256"])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits everything appended within the block, or nothing if the block raises."""
        self.query("BEGIN IMMEDIATE")
        try:
            self._last = (0, "")
            for table in TABLES if self._tables() else ():
                for row in self.query(f"SELECT entry, sha256 FROM {table} ORDER BY entry DESC LIMIT 1"):
                    self._last = max(self._last, tuple(row))
            yield
            self.query("COMMIT")
        except BaseException:
            self._connection.rollback()
            raise

    def _recognise(self, read_only: bool) -> None:
        if not read_only and not self._tables():
            with self.transaction():
                self._create()
        self.query("BEGIN")  # so that no writer changes the file during the checks
        self._check()
        self.query("COMMIT")
        self.query("PRAGMA foreign_keys = ON")

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
        if version > FORMAT_VERSION and schema != set(_SCHEMA):
            raise LedgerError(
                f"{self.path}: written in format {version} by another version of growctl; this one reads format "
                f"{FORMAT_VERSION}. Use the version that wrote it."
            )
        if version != FORMAT_VERSION or schema != set(_SCHEMA):
            raise BrokenLedger(self.path, "its tables are not those of its format")
        if self.read_only and _CHECKED.get(self.path.resolve()) == self._state:
            return
        for problem in self.query("PRAGMA integrity_check(1)"):
            if problem[0] != "ok":
                raise BrokenLedger(self.path, str(problem[0]).splitlines()[-1])
        with _explained(self.path):
            self._check_rows()
        if self.read_only:
            _CHECKED[self.path.resolve()] = self._state

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


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


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
