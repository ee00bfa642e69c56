"""Records a stage's metrics.jsonl in the ledger, each record once and in the file's order."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from growctl.ledger.entries import Anomaly, Evaluation, StageEntry
from growctl.ledger.file import LedgerFile
from growctl.schedule.known_devices import peak_flops
from stages.metrics import Record

UNKNOWN = "unknown"
"""Stands for a device or a precision whose `start` record is lost."""

MEASURED = tuple(f.name for f in fields(Evaluation) if f.name != "flops")
COLUMNS = {"evaluation": MEASURED, "anomaly": tuple(f.name for f in fields(Anomaly) if f.name != "attempt")}
"""The columns that the ledger keeps of evaluation and anomaly records, by event."""

JOULES = ("gpu_joules", "cpu_joules")
PEAKS = ("peak_gpu_bytes", "peak_resident_bytes")
"""The figures of a `usage` record: sums since the attempt's start, and maxima."""

LANDMARKS = ("start", "reused", "checkpoint")
"""Events whose records replace a lost `start`, even one that is much earlier in the file."""


@dataclass
class _Attempt:
    """The booked part of one attempt, and the open records after its last work row."""

    resumed_from: int
    step: int
    """The step at which the next row begins."""

    seconds: float
    """Seconds booked so far, counted from the launch of the attempt."""

    covered: int
    """Number of the attempt's records that rows cover."""

    joules: dict[str, float | None]
    """Joules booked so far, by counter; None where no row has any."""

    num_records: int = 0
    """Number of the attempt's records read so far."""

    paid_by: str | None = None
    """The run that paid, from the first `reused` record of the attempt on."""

    open_records: int = 0
    open_step: int = 0
    open_seconds: float = 0.0
    open_evaluated: int = 0
    """Validation tokens."""
    open_own_evaluated: int = 0
    """Validation tokens at the stage's own context, where the others are at another."""
    open_usage: Record | None = None
    """The newest `usage` record."""
    timed_step: int = 0
    """The step up to which `train` records have timed steps."""
    open_timed_steps: int = 0
    open_timed_seconds: float = 0.0

    def take(self, record: Record, tokens_per_step: int) -> None:
        """Adds a record to the open part, unless a row covers it already."""
        self.num_records += 1
        if self.num_records <= self.covered:
            return
        self.open_records += 1
        self.open_step = max(self.open_step, record["step"])
        self.open_seconds = record["seconds"]
        if record["event"] == "evaluation":
            self.open_evaluated += record["num_tokens"]
            self.open_own_evaluated += record.get("own_context_tokens", 0)
        elif record["event"] == "usage":
            self.open_usage = record
        elif record["event"] == "train" and (speed := record.get("tokens_per_second")):
            num_steps = max(0, record["step"] - max(self.step, self.resumed_from, self.timed_step))
            self.open_timed_steps += num_steps
            self.open_timed_seconds += num_steps * tokens_per_step / speed
            self.timed_step = record["step"]

    def close(
        self, stage: StageEntry, closed_by: str, device: Mapping[str, Any], reused: Record | None = None
    ) -> dict[str, Any]:
        """Closes the open part and returns its work row. `reused`: the record of the reuse that closes it."""
        last_step = max(self.step, self.resumed_from, self.open_step)
        num_steps = last_step - self.step
        seconds = max(self.seconds, self.open_seconds)
        wall_seconds = _thousandths(seconds - self.seconds)
        self.paid_by = reused["run"] if reused else self.paid_by
        row = {
            "first_step": self.step,
            "last_step": last_step,
            "num_records": self.num_records,
            "closed_by": closed_by,
            "tokens": num_steps * stage.tokens_per_step,
            "flops": asdict(stage.step_flops * num_steps),
            "recomputed_flops": 0.0 if reused else device.get("recomputed_step_flops", 0.0) * num_steps,
            "evaluation_flops": self._evaluation_flops(stage),
            "wall_seconds": wall_seconds,
            "device_seconds": reused["device_seconds"] if reused else wall_seconds * device["num_devices"],
            "step_seconds": self._step_seconds(num_steps),
            **self._used(),
            "device": device["device"],
            "num_devices": device["num_devices"],
            "precision": device["precision"],
            "peak_flops": peak_flops(device.get("peak_flops"), device["device"], device["precision"]),
            "price_per_device_hour": device.get("price_per_device_hour"),
            "paid_by": self.paid_by,
            "recorded_at": utc_now(),
        }
        self.step, self.seconds, self.covered = last_step, seconds, self.num_records
        self.open_records = self.open_step = self.open_timed_steps = 0
        self.open_evaluated = self.open_own_evaluated = 0
        self.open_timed_seconds, self.open_usage = 0.0, None
        return flat(row)

    def _evaluation_flops(self, stage: StageEntry) -> float:
        own = (stage.own_evaluation_flops_per_token or 0.0) * self.open_own_evaluated
        return stage.evaluation_flops_per_token * self.open_evaluated + own

    def _step_seconds(self, num_steps: int) -> float | None:
        """Wall seconds of the open steps, at the speed of those that were timed; None if none was."""
        if num_steps and not self.open_timed_steps:
            return None
        return _thousandths(self.open_timed_seconds * num_steps / max(1, self.open_timed_steps))

    def _used(self) -> dict[str, float | None]:
        """Energy and memory of the open part, up to its newest `usage` record; books the energy."""
        usage = self.open_usage or {}
        used: dict[str, float | None] = {}
        for name in JOULES:
            booked, total = self.joules[name], usage.get(name)
            if total is not None:
                used[name] = max(0.0, _thousandths(total - (booked or 0.0)))
                self.joules[name] = _thousandths((booked or 0.0) + (used[name] or 0.0))
            else:  # what was used after the last measurement is lost, as the time after the last record is
                used[name] = None if booked is None or self.open_usage else 0.0
        return used | {name: usage.get(name) for name in PEAKS}


class StageBooks:
    """Books one stage's metrics.jsonl into the ledger, from its first line on."""

    def __init__(self, file: LedgerFile, stage: StageEntry, landmarks: Iterable[Record] = ()) -> None:
        """`landmarks`: the records of LANDMARKS that the file has so far. With them, the rows do not depend on the
        pieces in which the file is booked, even if the `start` of an attempt is lost.
        """
        self._file = file
        self._stage = stage
        self._waiting: list[Record] = []
        self._attempts: dict[int, _Attempt] = {}
        self._starts: dict[int, Record] = {}
        self._checkpoints: set[tuple[int, int]] = set()
        """(attempt, step)."""
        self._note(landmarks)

        self._booked = {
            row["attempt"]: row
            for row in file.query(
                """SELECT attempt, max(last_step) AS step, max(num_records) AS num_records,
                   sum(wall_seconds) AS seconds, sum(gpu_joules) AS gpu_joules, sum(cpu_joules) AS cpu_joules
                   FROM work WHERE stage = :stage GROUP BY attempt""",
                stage=stage.name,
            )
        }
        known = file.query("SELECT attempt, resumed_from FROM attempt WHERE stage = :stage", stage=stage.name)
        self._resumed_from: dict[int, int] = {row["attempt"]: row["resumed_from"] for row in known}

    def add(self, records: Iterable[Record]) -> None:
        """Queues the next records of the file; the next `sync` books them."""
        self._waiting.extend(records)

    def sync(self, records: Iterable[Record] = (), attempt_over: bool = False) -> None:
        """Appends the rows for the records queued since the last sync, followed by `records`.

        Each `checkpoint`, each `reused` and the `end` of an attempt close a work row. The records after the last of
        them become a row when the attempt is over: when a later attempt has started, or with `attempt_over`, when its
        workers have exited. The rows do not depend on when and how often this is called, and records that were booked
        earlier are not booked again. If the `start` of an attempt is lost, the nearest other attempt supplies its
        values. After an error the ledger is unchanged, and the next call tries again. After a signal the rows may be in
        the ledger: book the file again with new books.
        """
        self.add(records)
        new: dict[int, list[Record]] = {}
        for record in self._waiting:
            new.setdefault(record["attempt"], []).append(record)
        self._note(self._waiting)
        newest = max(new, default=0)
        if self._attempts:
            newest = max(newest, *self._attempts)
        unclosed = {number for number, attempt in self._attempts.items() if attempt.open_records}
        changed: dict[int, _Attempt] = {}
        with self._file.transaction():
            for number in sorted(new.keys() | unclosed):
                over = attempt_over or number < newest
                if number in new or over:
                    changed[number] = self._book(number, new.get(number, []), over, self._attempts | changed)
        self._attempts |= changed
        self._waiting = []

    def _note(self, records: Iterable[Record]) -> None:
        for record in records:
            if record["event"] in ("start", "reused"):
                self._starts.setdefault(record["attempt"], record)
            if record["event"] in ("checkpoint", "reused"):
                self._checkpoints.add((record["attempt"], record["step"]))

    def _book(self, number: int, records: Sequence[Record], over: bool, known: dict[int, _Attempt]) -> _Attempt:
        """Appends the rows that `records` add to an attempt, and returns the attempt's new state."""
        key = {"stage": self._stage.name, "attempt": number}
        attempt = (
            replace(known[number], joules=dict(known[number].joules))
            if number in known
            else self._opened(number, records)
        )
        if number in self._starts:
            attempt.resumed_from = self._starts[number]["resumed_from"] or 0
        # A checkpoint may be complete although its record was never written. The attempt that resumes from it then
        # books the steps before it.
        first_step = min(attempt.resumed_from, self._last_step_before(number, known))
        attempt.step = attempt.step if attempt.covered else first_step
        if number not in known:
            self._file.append(
                "attempt", key | {"first_step": first_step, "resumed_from": attempt.resumed_from}, once=True
            )
        for record in records:
            if columns := COLUMNS.get(record["event"]):
                self._file.append(
                    record["event"], key | {name: _column(record.get(name)) for name in columns}, once=True
                )
        for record in records:
            attempt.take(record, self._stage.tokens_per_step)
            if attempt.open_records and record["event"] in ("checkpoint", "end", "reused"):
                reused = record if record["event"] == "reused" else None
                row = attempt.close(self._stage, record["event"], self._device(number), reused)
                self._file.append("work", key | row)
        if over and attempt.open_records:
            self._file.append("work", key | attempt.close(self._stage, "interruption", self._device(number)))
        return attempt

    def _opened(self, number: int, records: Sequence[Record]) -> _Attempt:
        """An attempt before its first record is read, with what the ledger has booked of it."""
        row = self._booked.get(number)
        step, seconds, covered = (row["step"], row["seconds"], row["num_records"]) if row else (0, 0.0, 0)
        joules = {name: None if row is None or row[name] is None else _thousandths(row[name]) for name in JOULES}
        resumed_from = self._resumed_from.get(number)
        if resumed_from is None:  # its `start` is lost: assume the newest checkpoint that it can have resumed from
            first = min(record["step"] for record in records)
            saved = [step for attempt, step in self._checkpoints if attempt < number and step <= first]
            resumed_from = max(saved, default=0)
        return _Attempt(resumed_from, step, _thousandths(seconds), covered, joules)

    def _last_step_before(self, number: int, known: dict[int, _Attempt]) -> int:
        """The last step of the latest attempt before `number` that has rows; 0 if there is none."""
        steps = {earlier: row["step"] for earlier, row in self._booked.items()}
        steps |= {earlier: attempt.step for earlier, attempt in known.items() if attempt.covered}
        before = max((earlier for earlier in steps if earlier < number), default=None)
        return 0 if before is None else steps[before]

    def _device(self, number: int) -> Mapping[str, Any]:
        """The devices and precision of an attempt, from its `start`; the most likely ones if that is lost."""
        starts = [self._starts[number]] if number in self._starts else self._starts.values()
        nearest = min(starts, key=lambda start: abs(start["attempt"] - number), default=None)
        if nearest is not None:
            return nearest
        rows = self._file.query(
            """SELECT device, num_devices, precision, peak_flops, price_per_device_hour FROM work
               WHERE stage = :stage LIMIT 1""",
            stage=self._stage.name,
        )
        return dict(rows[0]) if rows else {"device": UNKNOWN, "num_devices": 1, "precision": UNKNOWN}


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """`row` with nested values, {"flops": {"head": 1.0}}, as separate columns, {"flops_head": 1.0}."""
    flattened: dict[str, Any] = {}
    for name, value in row.items():
        flattened |= {f"{name}_{part}": v for part, v in value.items()} if isinstance(value, dict) else {name: value}
    return flattened


def _column(value: Any) -> Any:
    """A value of a record as a column's: a nested one as JSON."""
    return json.dumps(value) if isinstance(value, dict) else value


def utc_now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _thousandths(value: float) -> float:
    """Seconds or joules rounded to the precision of records, so that sums and differences do not depend on their
    order."""
    return round(value, 3)
