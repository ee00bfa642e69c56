"""The cost ledger: what a run spent, in one SQLite file that only its runner writes and that never forgets.

Rows are derived from a stage's metrics.jsonl (see stages/metrics.py) and appended; triggers refuse changes.
Sums are never stored. Work that a later attempt had to do again is found from where that attempt resumed, and
stays counted.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from growctl.ledger.entries import Anomaly, Cost, Evaluation, RunEntry, SplitCost, StageEntry
from growctl.ledger.file import BrokenLedger, LedgerError, LedgerFile
from model.flops import Flops
from stages.metrics import Record

__all__ = [
    "Anomaly",
    "BrokenLedger",
    "Cost",
    "Evaluation",
    "Ledger",
    "LedgerError",
    "RunEntry",
    "SplitCost",
    "StageEntry",
]

UNKNOWN = "unknown"
"""What stands for a device or a precision whose line is lost."""

_JSON = ("conditions", "caveats")
"""What of a run is no plain value, and kept as JSON."""

_MAY_CHANGE = ("schedule", "dataset", "run_id", "ladder_id", "decays", "caveats")
"""What of a run may differ when it is recorded again."""

_ANOMALY = tuple(f.name for f in fields(Anomaly) if f.name != "attempt")
_MEASURED = tuple(f.name for f in fields(Evaluation) if f.name != "flops")


class _Covered(NamedTuple):
    """How far an attempt is in the ledger."""

    step: int
    num_records: int
    seconds: float
    """Since the attempt was launched."""


class Ledger:
    """One run's ledger. Open it with `Ledger.open`; a context manager."""

    def __init__(self, file: LedgerFile) -> None:
        self.path = file.path
        self._file = file
        self._query, self._append = file.query, file.append

    @classmethod
    def open(cls, path: Path, read_only: bool = False) -> "Ledger":
        """The ledger in the file `path`; created when missing, unless `read_only`, which writes nothing.

        Raises LedgerError when the file is missing (read-only) or of another format, and BrokenLedger, one too, when
        it is damaged.
        """
        return cls(LedgerFile(path, read_only))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What the runner writes.

    def record_run(self, run: RunEntry, stages: Sequence[StageEntry]) -> None:
        """Records the run and all stages of its schedule, before any work; the same again changes nothing.

        Raises LedgerError where they differ from those recorded. The places (`schedule`, `dataset`) may have other
        names by now, runs other ids, and caveats other words: the first ones stay.
        """
        now = {"run": asdict(run)} | {f"stage {stage.name}": asdict(stage) for stage in stages}
        with self._file.transaction():
            if not self._query("SELECT 1 FROM run"):
                row = {"id": 1} | asdict(run) | {"decays": int(run.decays)}
                texts = {name: json.dumps(row[name]) for name in _JSON}
                self._append("run", row | texts | {"created_at": _now()})
                for position, stage in enumerate(stages):
                    self._append("stage", _flat({"position": position} | asdict(stage)))
            held = {"run": asdict(self.run())} | {f"stage {stage.name}": asdict(stage) for stage in self.stages()}
        if list(held) != list(now):
            raise LedgerError(f"{self.path} holds {', '.join(held)}; now there are {', '.join(now)}")
        for what, values in held.items():
            for name, value in values.items():
                if name not in _MAY_CHANGE and now[what][name] != value:
                    raise LedgerError(
                        f"{self.path}: {what} was recorded with {name} {value!r}, now it is {now[what][name]!r}; "
                        "other values need another run name"
                    )

    def sync(self, stage: str, records: Sequence[Record], attempt_over: bool = False) -> None:
        """Appends the rows that `records`, all of the stage's metrics.jsonl, add to the ledger.

        Within an attempt a work row closes at each `checkpoint` and at `end`. What follows the last of them
        becomes a row once the attempt is over: a later one is in `records`, or `attempt_over` says that its
        workers are gone. However often and whenever this is called, the rows come out the same. An attempt whose
        `start` is lost is taken to be like the nearest other one. Raises LedgerError for a stage that was not recorded.
        """
        entry = self._stage(stage)
        attempts: dict[int, list[Record]] = {}
        for record in records:
            attempts.setdefault(record["attempt"], []).append(record)
        with self._file.transaction():
            for number in sorted(attempts):
                start = _first(attempts[number], "start") or self._likely_start(stage, number, records)
                over = attempt_over or number < max(attempts)
                self._sync_attempt(entry, number, start, attempts[number], over)

    def _sync_attempt(self, stage: StageEntry, number: int, start: Record, records: list[Record], over: bool) -> None:
        key = {"stage": stage.name, "attempt": number}
        rows = self._query(
            """SELECT attempt, max(last_step), max(num_records), sum(wall_seconds) FROM work
               WHERE stage = :stage AND attempt <= :attempt GROUP BY attempt ORDER BY attempt""",
            **key,
        )
        own = rows.pop() if rows and rows[-1]["attempt"] == number else None
        # A checkpoint may be whole before the line that tells of it: steps that only the resumption shows are
        # booked with the attempt that resumed.
        resumed_from = start["resumed_from"] or 0
        first_step = min(resumed_from, rows[-1][1] if rows else 0)
        covered = _Covered(own[1], own[2], _milliseconds(own[3])) if own else _Covered(first_step, 0, 0.0)
        self._append("attempt", key | {"first_step": first_step, "resumed_from": resumed_from}, once=True)
        for record in records:
            if record["event"] == "evaluation":
                self._append("evaluation", key | {name: record.get(name) for name in _MEASURED}, once=True)
            elif record["event"] == "anomaly":
                self._append("anomaly", key | {name: record.get(name) for name in _ANOMALY}, once=True)
        for row in _work_rows(stage, start, records, covered, over):
            self._append("work", key | row)

    def _likely_start(self, stage: str, number: int, records: Sequence[Record]) -> Record:
        """What the lost `start` of an attempt said, by what the ledger and the other lines tell."""
        known = self._query(
            "SELECT resumed_from FROM attempt WHERE stage = :stage AND attempt = :attempt", stage=stage, attempt=number
        )
        first_step = min(record["step"] for record in records if record["attempt"] == number)
        saved = [r["step"] for r in records if r["event"] == "checkpoint" and r["attempt"] < number]
        saved_before = max((step for step in saved if step <= first_step), default=None)
        starts = [record for record in records if record["event"] == "start"]
        devices: Any = min(starts, key=lambda start: abs(start["attempt"] - number), default=None)
        if devices is None:
            rows = self._query(
                "SELECT device, num_devices, precision FROM work WHERE stage = :stage LIMIT 1", stage=stage
            )
            devices = rows[0] if rows else {"device": UNKNOWN, "num_devices": 1, "precision": UNKNOWN}
        return {"resumed_from": known[0][0] if known else saved_before} | {
            name: devices[name] for name in ("device", "num_devices", "precision")
        }

    # What is read from it.

    def run(self) -> RunEntry:
        """The run; LedgerError when none is recorded yet."""
        rows = self._query("SELECT * FROM run")
        if not rows:
            raise LedgerError(f"{self.path}: no run is recorded here yet")
        values = {f.name: rows[0][f.name] for f in fields(RunEntry)}
        texts = {name: json.loads(values[name]) for name in _JSON}
        return RunEntry(**values | texts | {"decays": bool(values["decays"])})

    def precisions(self) -> set[str]:
        """The precisions that the run has trained in so far: `bf16`, `fp32`."""
        return {row[0] for row in self._query("SELECT DISTINCT precision FROM work")} - {UNKNOWN}

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

    def anomalies(self, stage: str) -> list[Anomaly]:
        """What went wrong with the stage's numbers, in the order in which it did."""
        rows = self._query("SELECT * FROM anomaly WHERE stage = :stage ORDER BY attempt, seconds", stage=stage)
        return [Anomaly(**{f.name: row[f.name] for f in fields(Anomaly)}) for row in rows]


def _first(records: Sequence[Record], event: str) -> Record | None:
    return next((record for record in records if record["event"] == event), None)


def _work_rows(
    stage: StageEntry, start: Record, records: Sequence[Record], covered: _Covered, over: bool
) -> Iterator[dict[str, Any]]:
    """The rows that an attempt's `records` close, after those that the ledger covers."""
    step, begin, booked = covered
    for end in range(begin + 1, len(records) + 1):
        closed_by = records[end - 1]["event"]
        if closed_by not in ("checkpoint", "end"):
            if not over or end < len(records):
                continue
            closed_by = "interruption"
        closed = records[begin:end]
        last_step = max(step, start["resumed_from"] or 0, *(record["step"] for record in closed))
        evaluated = sum(record["num_tokens"] for record in closed if record["event"] == "evaluation")
        seconds = max(booked, closed[-1]["seconds"])
        wall_seconds = _milliseconds(seconds - booked)
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
            "precision": start["precision"],
            "recorded_at": _now(),
        }
        yield _flat(row)
        step, begin, booked = last_step, end, seconds


def _milliseconds(seconds: float) -> float:
    """As precise as records are, so that sums and differences come out the same in whatever order they are made."""
    return round(seconds, 3)


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
