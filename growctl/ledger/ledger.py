"""The cost ledger: what a run spent, in one append-only SQLite file that only the holder of the run's lock writes.

Rows are derived from a stage's metrics.jsonl (growctl/ledger/books.py) and appended; triggers reject changes. `growctl
eval` appends its scores, which scores.jsonl holds too.
Sums are never stored. The step at which a later attempt resumed shows which work was replayed. Replayed work stays in
the ledger.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from growctl.ledger.books import MEASURED, UNKNOWN, StageBooks, flat, utc_now
from growctl.ledger.entries import (
    Anomaly,
    BaseEntry,
    Cost,
    Evaluation,
    PeakMemory,
    RunEntry,
    Shares,
    SourceEvaluation,
    SplitCost,
    StageEntry,
)
from growctl.ledger.file import TABLES, BrokenLedger, LedgerError, LedgerFile, NothingRecorded
from growctl.ledger.scores import ScoreEntry
from model.flops import Flops
from stages.metrics import Record

__all__ = [
    "Anomaly",
    "BaseEntry",
    "BrokenLedger",
    "Cost",
    "Evaluation",
    "Ledger",
    "LedgerError",
    "NothingRecorded",
    "PeakMemory",
    "RunEntry",
    "ScoreEntry",
    "SourceEvaluation",
    "SplitCost",
    "StageEntry",
]

_JSON = ("conditions", "caveats", "base", "overrides")
"""Fields of a run that are stored as JSON."""

_MAY_CHANGE = (
    *("name", "control_of", "schedule", "dataset", "run_id", "ladder_id", "decays", "caveats"),
    *("group", "overrides"),
)
"""Fields of a run that may differ when the run is recorded again."""


class Ledger:
    """One run's ledger. Open it with `Ledger.open`; a context manager."""

    def __init__(self, file: LedgerFile) -> None:
        self.path = file.path
        self._file = file
        self._query, self._append = file.query, file.append
        self._answers: dict[str, Any] = {}
        """What a read-only ledger, a snapshot, was asked before."""

    @classmethod
    def open(cls, path: Path, read_only: bool = False) -> "Ledger":
        """The ledger in the file `path`; creates a missing file, unless `read_only`, which writes nothing.

        Raises LedgerError if the file is missing (read-only) or has another format, BrokenLedger (a LedgerError) if it
        is damaged.
        """
        return cls(LedgerFile(path, read_only))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Written by the runner; scores by `growctl eval`.

    def record_run(self, run: RunEntry, stages: Sequence[StageEntry]) -> None:
        """Records the run and all stages of its schedule, before any work. Recording them again changes nothing.

        Raises LedgerError if they differ from those recorded. Only the fields in _MAY_CHANGE may differ: names, paths,
        ids, sets, decays and caveats. The ledger keeps the first values.
        """
        now = {"run": asdict(run)} | {f"stage {stage.name}": asdict(stage) for stage in stages}
        with self._file.transaction():
            if not self._query("SELECT 1 FROM run"):
                row = {"id": 1} | asdict(run) | {"decays": int(run.decays)}
                texts = {name: json.dumps(row[name]) for name in _JSON}
                self._append("run", row | texts | {"created_at": utc_now()})
                for position, stage in enumerate(stages):
                    row = asdict(stage) | {"position": position, "decayed": int(stage.decayed)}
                    self._append("stage", flat(row))
            held = {"run": asdict(self.run())} | {f"stage {stage.name}": asdict(stage) for stage in self.stages()}
        if list(held) != list(now):
            raise LedgerError(f"{self.path} has {', '.join(held)}; now there are {', '.join(now)}")
        for what, values in held.items():
            for name, value in values.items():
                if name not in _MAY_CHANGE and (differing := _differing(name, value, now[what][name])):
                    raise LedgerError(
                        f"{self.path}: {what} was recorded with {differing}; use another run name for other values"
                    )

    def books(self, stage: str, landmarks: Iterable[Record] = ()) -> StageBooks:
        """The books for a stage's metrics.jsonl; raises LedgerError for a stage that was not recorded."""
        return StageBooks(self._file, self._stage(stage), landmarks)

    def record_scores(self, scores: Iterable[ScoreEntry]) -> None:
        """Records scores of checkpoints. Recording them again changes nothing.

        Raises LedgerError for a stage that was not recorded.
        """
        with self._file.transaction():
            for score in scores:
                self._stage(score.stage)
                row = asdict(score) | {"settings": json.dumps(score.settings, sort_keys=True)}
                self._append("score", row, once=True)

    # Read from the ledger.

    def run(self) -> RunEntry:
        """The run; raises NothingRecorded if there is none yet."""
        rows = self._query("SELECT * FROM run")
        if not rows:
            raise NothingRecorded(self.path)
        values = {f.name: rows[0][f.name] for f in fields(RunEntry)}
        texts = {name: json.loads(values[name]) for name in _JSON}
        base = BaseEntry(**texts["base"]) if texts["base"] else None
        return RunEntry(**values | texts | {"decays": bool(values["decays"]), "base": base})

    def precisions(self) -> set[str]:
        """The precisions that the run has trained in so far: `bf16`, `fp32`."""
        return {row[0] for row in self._query("SELECT DISTINCT precision FROM work")} - {UNKNOWN}

    def machines(self) -> list[tuple[str, int, str]]:
        """The device, the number of devices and the precision of all work, in order, also of reused work, which has the
        costs of the machine that did it."""
        rows = self._query("SELECT device, num_devices, precision FROM work ORDER BY entry")
        return list(dict.fromkeys(map(tuple, rows)))

    def stages(self) -> list[StageEntry]:
        """Every stage of the schedule, in order, each followed by its release if it has one."""
        names = [f.name for f in fields(StageEntry) if f.name not in ("step_flops", "decayed")]
        return [
            StageEntry(
                **{name: row[name] for name in names},
                step_flops=_flops("step_flops", row),
                decayed=bool(row["decayed"]),
            )
            for row in self._query("SELECT * FROM stage ORDER BY position")
        ]

    def _stage(self, name: str) -> StageEntry:
        for stage in self.stages():
            if stage.name == name:
                return stage
        raise LedgerError(f"{self.path}: no stage {name!r} is recorded here")

    def last_attempt(self, stage: str) -> int:
        """The highest recorded attempt of a stage; 0 before the first."""
        [(number,)] = self._query("SELECT coalesce(max(attempt), 0) FROM attempt WHERE stage = :stage", stage=stage)
        return int(number)

    def finished(self, stage: str) -> bool:
        """Whether the last attempt of the stage reached its end, or the final evaluation and every step are booked."""
        ended = self._query(
            """SELECT 1 FROM work WHERE stage = :stage AND closed_by = 'end'
               AND attempt = (SELECT max(attempt) FROM attempt WHERE stage = :stage)""",
            stage=stage,
        )
        steps = self.stage_cost(stage).trained.steps
        return bool(ended) or any(e.point == "final" and e.step <= steps for e in self.evaluations(stage))

    def stage_cost(self, stage: str) -> SplitCost:
        """The cost of a stage so far, from its work rows. A row that was repeated in part is split by its steps."""
        return self._once(f"cost of {stage}", lambda: _split(self.work(stage)))

    def work(self, stage: str) -> list[tuple[sqlite3.Row, Shares]]:
        """The work rows of a stage, in the order in which they were booked, each with what became of its steps."""
        return self._once(f"work of {stage}", lambda: self._work(stage))

    def _work(self, stage: str) -> list[tuple[sqlite3.Row, Shares]]:
        attempts = self._query("SELECT attempt, resumed_from FROM attempt WHERE stage = :s ORDER BY attempt", s=stage)
        rollbacks = self._query("SELECT attempt FROM anomaly WHERE stage = :s AND action = 'rollback'", s=stage)
        spoiled = {row["attempt"] for row in rollbacks}
        resumed = [(later["resumed_from"], before["attempt"] in spoiled) for before, later in pairwise(attempts)]
        after = {row["attempt"]: resumed[number:] for number, row in enumerate(attempts)}
        rows = self._query("SELECT * FROM work WHERE stage = :s ORDER BY entry", s=stage)
        return [(row, _shares(row, after.get(row["attempt"], ()))) for row in rows]

    def _once(self, question: str, answer: Callable[[], Any]) -> Any:
        """An answer; a read-only ledger, whose rows cannot change, works it out once."""
        if not self._file.read_only:
            return answer()
        if question not in self._answers:
            self._answers[question] = answer()
        return self._answers[question]

    def tables(self) -> dict[str, tuple[dict[str, str], list[dict[str, Any]]]]:
        """Every table: {name: (types of SQLite by column, rows)}, without the hashes. A work row ends with `kept`, the
        share of its steps that no later attempt repeated."""
        found = {}
        for table in TABLES:
            known = self._query("SELECT name, type FROM pragma_table_info(:table) WHERE name != 'sha256'", table=table)
            columns = {row["name"]: row["type"] for row in known}
            quoted = ", ".join(f'"{name}"' for name in columns)  # `group` is a word of SQL
            rows = [dict(row) for row in self._query(f"SELECT {quoted} FROM {table} ORDER BY entry")]
            found[table] = (columns, rows)
        columns, rows = found["work"]
        kept = {row["entry"]: shares.kept for stage in self.stages() for row, shares in self.work(stage.name)}
        found["work"] = (columns | {"kept": "REAL"}, [row | {"kept": kept[row["entry"]]} for row in rows])
        return found

    def holds(self, other: "Ledger") -> bool:
        """Whether this ledger has every row of `other`, which may be an earlier copy of it."""
        last = other.last_entry()
        same = [f"SELECT 1 FROM {table} WHERE entry = :entry AND sha256 = :sha256" for table in TABLES]
        return last is None or bool(self._query(" UNION ALL ".join(same), entry=last[0], sha256=last[1]))

    def last_entry(self) -> tuple[int, str] | None:
        """Number and hash of the last row; None without rows."""
        entries = " UNION ALL ".join(f"SELECT entry, sha256 FROM {table}" for table in TABLES)
        rows = self._query(f"SELECT * FROM ({entries}) ORDER BY entry DESC LIMIT 1")
        return (rows[0]["entry"], rows[0]["sha256"]) if rows else None

    def copy_to(self, path: Path) -> None:
        """Writes a copy of the ledger to the new file `path`, whole even if a runner appends to it meanwhile."""
        self._file.copy_to(path)

    def peak_memory(self, stage: str) -> PeakMemory:
        """The most memory that a stage has needed so far, in all its attempts."""
        [row] = self._query(
            "SELECT max(peak_gpu_bytes), max(peak_resident_bytes) FROM work WHERE stage = :stage", stage=stage
        )
        return PeakMemory(*row)

    def booked_at(self, stage: str) -> dict[int, str]:
        """When the steps of a stage up to each checkpoint, and to its end, were booked: {step: ISO 8601, in UTC}."""
        rows = self._query(
            """SELECT last_step, max(recorded_at) FROM work
               WHERE stage = :stage AND closed_by IN ('checkpoint', 'end') GROUP BY last_step""",
            stage=stage,
        )
        return {row[0]: row[1] for row in rows}

    def payers(self, stage: str) -> list[str]:
        """The runs that paid for reused steps of a stage, in the order of the steps."""
        rows = self._query(
            "SELECT DISTINCT paid_by FROM work WHERE stage = :stage AND paid_by NOT NULL ORDER BY entry", stage=stage
        )
        return [row[0] for row in rows]

    def evaluations(self, stage: str) -> list[Evaluation]:
        """The stage's evaluations that still count, oldest first; the last one where a step was evaluated again."""
        return self._once(f"evaluations of {stage}", lambda: self._evaluations(stage))

    def _evaluations(self, stage: str) -> list[Evaluation]:
        rows = self._query(
            """SELECT evaluation.*, step - first_step + steps_before AS steps_spent
               FROM evaluation JOIN (
                   SELECT stage, attempt, first_step,
                       (SELECT coalesce(sum(work.last_step - work.first_step), 0) FROM work
                        WHERE work.stage = attempt.stage AND work.attempt < attempt.attempt) AS steps_before,
                       (SELECT min(resumed_from) FROM attempt AS later
                        WHERE later.stage = attempt.stage AND later.attempt > attempt.attempt) AS resumed_from
                   FROM attempt WHERE stage = :stage) USING (stage, attempt)
               WHERE stage = :stage AND (resumed_from IS NULL OR step <= resumed_from)
               ORDER BY attempt, step, evaluation.rowid""",
            stage=stage,
        )
        latest = {(row["step"], row["point"]): row for row in rows}
        step_flops = self._stage(stage).step_flops.total
        return [
            Evaluation(
                **{name: row[name] for name in MEASURED}
                | {"by_source": _by_source(row["by_source"]), "flops": row["steps_spent"] * step_flops}
            )
            for row in sorted(latest.values(), key=lambda row: (row["attempt"], row["step"]))
        ]

    def scores(self, stage: str) -> list[ScoreEntry]:
        """The scores of a stage's checkpoints, oldest first."""
        rows = self._query("SELECT * FROM score WHERE stage = :stage ORDER BY entry", stage=stage)
        return [
            ScoreEntry(**{f.name: row[f.name] for f in fields(ScoreEntry)} | {"settings": json.loads(row["settings"])})
            for row in rows
        ]

    def anomalies(self, stage: str) -> list[Anomaly]:
        """The stage's anomalies, in the order in which they occurred."""
        rows = self._query("SELECT * FROM anomaly WHERE stage = :stage ORDER BY attempt, seconds", stage=stage)
        return [Anomaly(**{f.name: row[f.name] for f in fields(Anomaly)}) for row in rows]


def _by_source(text: str | None) -> dict[str, SourceEvaluation]:
    return {name: SourceEvaluation(**figures) for name, figures in json.loads(text).items()} if text else {}


def _split(work: Sequence[tuple[sqlite3.Row, Shares]]) -> SplitCost:
    kept, rolled_back, replayed, reused = (list[Cost]() for _ in range(4))
    for row, shares in work:
        cost, own = _cost(row), row["paid_by"] is None
        (kept if own else reused).append(cost if shares.kept == 1.0 else cost.share(shares.kept))
        if own and shares.kept < 1.0:
            rolled_back.append(cost.share(shares.rolled_back))
            replayed.append(cost.share(1.0 - shares.kept - shares.rolled_back))
    return SplitCost(*(Cost.total([Cost(), *costs]) for costs in (kept, rolled_back, replayed, reused)))


def _shares(row: sqlite3.Row, later: Sequence[tuple[int, bool]]) -> Shares:
    """What became of a row's steps. `later`: where each later attempt resumed, and whether a rollback had caused it."""
    first, last, rolled_back = row["first_step"], row["last_step"], 0
    num_steps = last - first
    if not num_steps:
        causes = [own for step, own in later if step <= last]
        return Shares() if not causes else Shares(0.0, float(causes[0]))
    for step, own in later:
        cut = max(first, min(step, last))
        rolled_back += (last - cut) * own
        last = cut
    return Shares((last - first) / num_steps, rolled_back / num_steps)


def _cost(row: sqlite3.Row) -> Cost:
    """The cost of a work row."""
    step_seconds, peak, price = (row[name] for name in ("step_seconds", "peak_flops", "price_per_device_hour"))
    return Cost(
        steps=row["last_step"] - row["first_step"],
        tokens=row["tokens"],
        flops=_flops("flops", row),
        recomputed_flops=row["recomputed_flops"],
        evaluation_flops=row["evaluation_flops"],
        wall_seconds=row["device_seconds"] / row["num_devices"] if row["paid_by"] else row["wall_seconds"],
        device_seconds=row["device_seconds"],
        step_seconds=step_seconds,
        available_flops=None if None in (step_seconds, peak) else step_seconds * row["num_devices"] * peak,
        gpu_joules=row["gpu_joules"],
        cpu_joules=row["cpu_joules"],
        money=None if price is None else row["device_seconds"] / 3600 * price,
    )


def _flops(prefix: str, row: sqlite3.Row) -> Flops:
    return Flops(row[f"{prefix}_parameters"], row[f"{prefix}_attention"], row[f"{prefix}_head"])


def _differing(name: str, held: Any, now: Any) -> str:
    """What differs between two values of the entry `name`, of two blocks the keys that do; empty if nothing does.

    How a run is launched may change when it resumes.
    """
    if not (isinstance(held, dict) and isinstance(now, dict)):
        return "" if held == now else f"{name} {held!r}, now it is {now!r}"
    paths = (path for path in sorted(held | now) if held.get(path) != now.get(path) and not path.startswith("launch."))
    return "; ".join(f"{path} {held.get(path)!r}, now it is {now.get(path)!r}" for path in paths)
