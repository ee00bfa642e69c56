"""The cost ledger: what a run spent, in one SQLite file that only its runner writes and that never forgets.

Rows are derived from a stage's metrics.jsonl (see stages/metrics.py) and appended; triggers refuse changes.
Sums are never stored. Work that a later attempt had to do again is found from where that attempt resumed, and
stays counted.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from model.flops import Flops
from stages.metrics import Record

FORMAT_VERSION = 1
_APPLICATION_ID = 0x67726F77  # "grow": tells a ledger from any other SQLite file
_BUSY_SECONDS = 60.0

_TABLES = {
    "run": """
        id INTEGER PRIMARY KEY CHECK (id = 1), name TEXT NOT NULL, schedule TEXT NOT NULL, control TEXT,
        control_of TEXT, seed INTEGER NOT NULL, dataset TEXT NOT NULL, dataset_fingerprint TEXT NOT NULL,
        created_at TEXT NOT NULL""",
    "stage": """
        position INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, num_parameters INTEGER NOT NULL,
        num_embedding_parameters INTEGER NOT NULL, train_tokens INTEGER NOT NULL, num_steps INTEGER NOT NULL,
        tokens_per_step INTEGER NOT NULL, step_flops_parameters REAL NOT NULL, step_flops_attention REAL NOT NULL,
        step_flops_head REAL NOT NULL, evaluation_flops_per_token REAL NOT NULL""",
    "attempt": """
        stage TEXT NOT NULL REFERENCES stage (name), attempt INTEGER NOT NULL, first_step INTEGER NOT NULL,
        resumed_from INTEGER NOT NULL, PRIMARY KEY (stage, attempt)""",
    "work": """
        stage TEXT NOT NULL, attempt INTEGER NOT NULL, first_step INTEGER NOT NULL, last_step INTEGER NOT NULL,
        num_records INTEGER NOT NULL, closed_by TEXT NOT NULL, tokens INTEGER NOT NULL, flops_parameters REAL NOT NULL,
        flops_attention REAL NOT NULL, flops_head REAL NOT NULL, evaluation_flops REAL NOT NULL,
        wall_seconds REAL NOT NULL, device_seconds REAL NOT NULL, device TEXT NOT NULL, num_devices INTEGER NOT NULL,
        recorded_at TEXT NOT NULL, CHECK (first_step <= last_step),
        UNIQUE (stage, attempt, first_step, last_step, num_records),
        FOREIGN KEY (stage, attempt) REFERENCES attempt (stage, attempt)""",
    "evaluation": """
        stage TEXT NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL, point TEXT NOT NULL, loss REAL,
        perplexity REAL, bits_per_byte REAL, num_tokens INTEGER NOT NULL, precision TEXT NOT NULL,
        UNIQUE (stage, attempt, step, point), FOREIGN KEY (stage, attempt) REFERENCES attempt (stage, attempt)""",
}
"""A work row covers the steps (first_step, last_step] of one attempt. Its `num_records` counts that attempt's
lines of metrics.jsonl that the rows up to it cover; `closed_by`: `checkpoint`, `end` or `interruption`."""


class LedgerError(ValueError):
    """A ledger that cannot be used, or values that contradict what it holds."""


@dataclass(frozen=True)
class RunEntry:
    """What a run is."""

    name: str
    schedule: str
    """Path or shipped name, as the user gave it."""
    control: str | None
    """Kind of control (`tokenformer-scratch`, ...); None for a ladder."""
    control_of: str | None
    """The run name of the ladder that a control is compared with; None for a ladder."""
    seed: int
    dataset: str
    """Path of the prepared dataset."""
    dataset_fingerprint: str


@dataclass(frozen=True)
class StageEntry:
    """What a stage is planned to be, and what a step of it costs."""

    name: str
    num_parameters: int
    num_embedding_parameters: int
    train_tokens: int
    """The budget: data tokens to train in this stage."""
    num_steps: int
    tokens_per_step: int
    step_flops: Flops
    """Training FLOPs of one optimizer step, forward and backward, by part."""
    evaluation_flops_per_token: float
    """FLOPs of a forward pass, per validation token."""


@dataclass(frozen=True)
class Cost:
    """What some work took. Adds."""

    steps: int = 0
    tokens: int = 0
    flops: Flops = field(default=Flops(0.0, 0.0, 0.0))
    """Training FLOPs, by part."""
    evaluation_flops: float = 0.0
    """FLOPs of evaluations, which are not part of `flops`."""
    wall_seconds: float = 0.0
    device_seconds: float = 0.0
    """Wall seconds x devices."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def share(self, fraction: float) -> "Cost":
        """The part of this cost that belongs to `fraction` of its steps."""
        return Cost(
            round(self.steps * fraction),
            round(self.tokens * fraction),
            self.flops * fraction,
            *(value * fraction for value in (self.evaluation_flops, self.wall_seconds, self.device_seconds)),
        )


@dataclass(frozen=True)
class SplitCost:
    """Cost, with what was done in vain shown apart. Adds."""

    kept: Cost = Cost()
    replayed: Cost = Cost()
    """Steps that a later attempt did again, and the time of attempts that came to no step."""

    @property
    def total(self) -> Cost:
        """Everything that was spent: kept and replayed."""
        return self.kept + self.replayed

    def __add__(self, other: "SplitCost") -> "SplitCost":
        return SplitCost(self.kept + other.kept, self.replayed + other.replayed)


@dataclass(frozen=True)
class Evaluation:
    """One evaluation that still stands (no later attempt resumed from before it)."""

    step: int
    point: str
    """`interval`, `after_growth` or `final`."""
    loss: float | None
    """Nats a token; None where it was not a number."""
    perplexity: float | None
    bits_per_byte: float | None
    num_tokens: int
    precision: str
    flops: float
    """Training FLOPs that the stage had spent when this was measured, replayed work included."""


_MEASURED = tuple(f.name for f in fields(Evaluation) if f.name != "flops")


class Ledger:
    """One run's ledger. Open it with `Ledger.open`; a context manager."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, path: Path, read_only: bool = False) -> "Ledger":
        """The ledger in the file `path`; created when missing, unless `read_only`, which writes nothing.

        Raises LedgerError when the file is missing (read-only), corrupt, no ledger, or of a newer format.
        """
        if read_only and not path.is_file():
            raise LedgerError(f"{path}: there is no ledger here")
        uri = f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        with _explained(path):
            connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
            connection.row_factory = sqlite3.Row
            ledger = cls(path, connection)
            try:
                ledger._recognise(read_only)
            except BaseException:
                connection.close()
                raise
        return ledger

    def _recognise(self, read_only: bool) -> None:
        self._query("PRAGMA foreign_keys = ON")
        if not read_only and not self._query("SELECT 1 FROM sqlite_master"):
            self._connection.executescript(_schema())
        [(application,)] = self._query("PRAGMA application_id")
        [(version,)] = self._query("PRAGMA user_version")
        if application != _APPLICATION_ID:
            raise LedgerError(f"{self.path}: this is not a growctl ledger")
        if version > FORMAT_VERSION:
            raise LedgerError(
                f"{self.path}: written in format {version} by a newer growctl; this one reads up to format "
                f"{FORMAT_VERSION}. Upgrade growctl."
            )

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _query(self, sql: str, **values: Any) -> list[sqlite3.Row]:
        with _explained(self.path):
            return self._connection.execute(sql, values).fetchall()

    def _append(self, table: str, row: dict[str, Any], once: bool = False) -> None:
        sql = f"INSERT INTO {table} ({', '.join(row)}) VALUES (:{', :'.join(row)})"
        self._query(f"{sql} ON CONFLICT DO NOTHING" if once else sql, **row)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._query("BEGIN IMMEDIATE")
        try:
            yield
            self._query("COMMIT")
        except BaseException:
            self._connection.rollback()
            raise

    # What the runner writes.

    def record_run(self, run: RunEntry, stages: Sequence[StageEntry]) -> None:
        """Records the run and all stages of its schedule, before any work; the same again changes nothing.

        Raises LedgerError where they differ from those recorded. The places (`schedule`, `dataset`) may have other
        names by now: the first ones stay.
        """
        now = {"run": asdict(run)} | {f"stage {stage.name}": asdict(stage) for stage in stages}
        with self._transaction():
            if not self._query("SELECT 1 FROM run"):
                self._append("run", asdict(run) | {"created_at": _now()})
                for position, stage in enumerate(stages):
                    self._append("stage", _flat({"position": position} | asdict(stage)))
            held = {"run": asdict(self.run())} | {f"stage {stage.name}": asdict(stage) for stage in self.stages()}
        if list(held) != list(now):
            raise LedgerError(f"{self.path} holds {', '.join(held)}; now there are {', '.join(now)}")
        for what, values in held.items():
            for name, value in values.items():
                if name not in ("schedule", "dataset") and now[what][name] != value:
                    raise LedgerError(
                        f"{self.path}: {what} was recorded with {name} {value!r}, now it is {now[what][name]!r}; "
                        "other values need another run name"
                    )

    def sync(self, stage: str, records: Sequence[Record], attempt_over: bool = False) -> None:
        """Appends the rows that `records`, all of the stage's metrics.jsonl, add to the ledger.

        Within an attempt a work row closes at each `checkpoint` and at `end`. What follows the last of them
        becomes a row once the attempt is over: a later one is in `records`, or `attempt_over` says that its
        workers are gone. However often and whenever this is called, the rows come out the same. Raises
        LedgerError for a stage that was not recorded and for an attempt without its `start`.
        """
        entry = self._stage(stage)
        attempts: dict[int, list[Record]] = {}
        for record in records:
            attempts.setdefault(record["attempt"], []).append(record)
        with self._transaction():
            for number in sorted(attempts):
                self._sync_attempt(entry, number, attempts[number], attempt_over or number < max(attempts))

    def _sync_attempt(self, stage: StageEntry, number: int, records: list[Record], over: bool) -> None:
        start = next((record for record in records if record["event"] == "start"), None)
        if start is None:
            raise LedgerError(f"{self.path}: stage {stage.name}: metrics.jsonl lacks the start of attempt {number}")
        key = {"stage": stage.name, "attempt": number}
        rows = self._query(
            """SELECT attempt, max(last_step), max(num_records) FROM work
               WHERE stage = :stage AND attempt <= :attempt GROUP BY attempt ORDER BY attempt""",
            **key,
        )
        own = rows.pop() if rows and rows[-1]["attempt"] == number else None
        # A checkpoint may be whole before the line that tells of it: steps that only the resumption shows are
        # booked with the attempt that resumed.
        resumed_from = start["resumed_from"] or 0
        first_step = min(resumed_from, rows[-1][1] if rows else 0)
        step, covered = (own[1], own[2]) if own else (first_step, 0)
        self._append("attempt", key | {"first_step": first_step, "resumed_from": resumed_from}, once=True)
        for record in records:
            if record["event"] == "evaluation":
                self._append("evaluation", key | {name: record.get(name) for name in _MEASURED}, once=True)
        for row in _work_rows(stage, start, records, step, covered, over):
            self._append("work", key | row)

    # What is read from it.

    def run(self) -> RunEntry:
        """The run; LedgerError when none is recorded yet."""
        rows = self._query("SELECT * FROM run")
        if not rows:
            raise LedgerError(f"{self.path}: no run is recorded here yet")
        return RunEntry(**{f.name: rows[0][f.name] for f in fields(RunEntry)})

    def stages(self) -> list[StageEntry]:
        """Every stage of the schedule, in order."""
        names = [f.name for f in fields(StageEntry) if f.name != "step_flops"]
        return [
            StageEntry(**{name: row[name] for name in names}, step_flops=_flops("step_flops", row))
            for row in self._query("SELECT * FROM stage ORDER BY position")
        ]

    def _stage(self, name: str) -> StageEntry:
        for stage in self.stages():
            if stage.name == name:
                return stage
        raise LedgerError(f"{self.path}: no stage {name!r} is recorded here")

    def last_attempt(self, stage: str) -> int:
        """The highest attempt of a stage that the ledger has seen start; 0 before the first."""
        [(number,)] = self._query("SELECT coalesce(max(attempt), 0) FROM attempt WHERE stage = :stage", stage=stage)
        return int(number)

    def finished(self, stage: str) -> bool:
        """Whether the stage's last attempt came to its end, or its result was evaluated and every step booked."""
        ended = self._query(
            """SELECT 1 FROM work WHERE stage = :stage AND closed_by = 'end'
               AND attempt = (SELECT max(attempt) FROM attempt WHERE stage = :stage)""",
            stage=stage,
        )
        steps = self.stage_cost(stage).kept.steps
        return bool(ended) or any(e.point == "final" and e.step <= steps for e in self.evaluations(stage))

    def stage_cost(self, stage: str) -> SplitCost:
        """What a stage has cost so far, by its closed rows. One replayed in part is split by its steps."""
        rows = self._query(
            """SELECT *, (SELECT min(resumed_from) FROM attempt AS later
                          WHERE later.stage = work.stage AND later.attempt > work.attempt) AS resumed_from
               FROM work WHERE stage = :stage""",
            stage=stage,
        )
        split = SplitCost()
        for row in rows:
            num_steps, resumed_from = row["last_step"] - row["first_step"], row["resumed_from"]
            if resumed_from is None or resumed_from > row["last_step"]:
                kept = 1.0
            else:
                kept = max(0, resumed_from - row["first_step"]) / num_steps if num_steps else 0.0
            spent = (row["evaluation_flops"], row["wall_seconds"], row["device_seconds"])
            cost = Cost(num_steps, row["tokens"], _flops("flops", row), *spent)
            split += SplitCost(cost.share(kept), cost.share(1.0 - kept))
        return split

    def cumulative_cost(self, stage: str | None = None) -> SplitCost:
        """What the run has cost through `stage`, or in all."""
        names = [entry.name for entry in self.stages()]
        if stage is not None:
            names = names[: names.index(self._stage(stage).name) + 1]
        return sum((self.stage_cost(name) for name in names), SplitCost())

    def evaluations(self, stage: str) -> list[Evaluation]:
        """The stage's evaluations that still stand, oldest first; of repeated ones the last."""
        rows = self._query(
            """SELECT evaluation.*, step - first_step + (
                   SELECT coalesce(sum(work.last_step - work.first_step), 0) FROM work
                   WHERE work.stage = evaluation.stage AND work.attempt < evaluation.attempt) AS steps_spent
               FROM evaluation JOIN attempt USING (stage, attempt)
               WHERE stage = :stage AND NOT EXISTS (
                   SELECT 1 FROM attempt AS later WHERE later.stage = evaluation.stage
                   AND later.attempt > evaluation.attempt AND later.resumed_from < evaluation.step)
               ORDER BY attempt, step, evaluation.rowid""",
            stage=stage,
        )
        standing = {(row["step"], row["point"]): row for row in rows}
        step_flops = self._stage(stage).step_flops.total
        return [
            Evaluation(**{name: row[name] for name in _MEASURED}, flops=row["steps_spent"] * step_flops)
            for row in sorted(standing.values(), key=lambda row: (row["attempt"], row["step"]))
        ]


def _schema() -> str:
    script = [f"PRAGMA application_id = {_APPLICATION_ID}", f"PRAGMA user_version = {FORMAT_VERSION}"]
    for table, columns in _TABLES.items():
        script.append(f"CREATE TABLE {table} ({columns})")
        script.extend(
            f"CREATE TRIGGER {table}_keeps_on_{verb} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: {table}'); END"
            for verb in ("update", "delete")
        )
    return "BEGIN IMMEDIATE; " + "; ".join(script) + "; COMMIT;"


def _work_rows(
    stage: StageEntry, start: Record, records: Sequence[Record], step: int, begin: int, over: bool
) -> Iterator[dict[str, Any]]:
    """The rows that an attempt's `records` close, after the first `begin` of them, which reached `step`."""
    for end in range(begin + 1, len(records) + 1):
        closed_by = records[end - 1]["event"]
        if closed_by not in ("checkpoint", "end"):
            if not over or end < len(records):
                continue
            closed_by = "interruption"
        covered = records[begin:end]
        last_step = max(step, start["resumed_from"] or 0, *(record["step"] for record in covered))
        evaluated = sum(record["num_tokens"] for record in covered if record["event"] == "evaluation")
        wall_seconds = covered[-1]["seconds"] - (records[begin - 1]["seconds"] if begin else 0.0)
        row = {
            "first_step": step,
            "last_step": last_step,
            "num_records": end,
            "closed_by": closed_by,
            "tokens": (last_step - step) * stage.tokens_per_step,
            "flops": asdict(stage.step_flops * (last_step - step)),
            "evaluation_flops": stage.evaluation_flops_per_token * evaluated,
            "wall_seconds": wall_seconds,
            "device_seconds": wall_seconds * start["num_devices"],
            "device": start["device"],
            "num_devices": start["num_devices"],
            "recorded_at": _now(),
        }
        yield _flat(row)
        begin, step = end, last_step


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """`row` with FLOPs by part, {"flops": {"head": 1.0}}, in columns of their own, {"flops_head": 1.0}."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        flat |= {f"{name}_{part}": v for part, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _flops(prefix: str, row: sqlite3.Row) -> Flops:
    return Flops(**{f.name: row[f"{prefix}_{f.name}"] for f in fields(Flops)})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        why = str(error)
        if error.sqlite_errorname == "SQLITE_READONLY_ROLLBACK":
            why = "its runner died while writing; `growctl run` puts that right when it goes on"
        raise LedgerError(f"{path}: the ledger cannot be used: {why}") from error
