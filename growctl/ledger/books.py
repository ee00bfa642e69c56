"""Records a stage's metrics.jsonl in the ledger, each record once and in the file's order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from growctl.ledger.entries import AnomalyEntry, AttemptEntry, EvaluationEntry, StageEntry, WorkEntry
from growctl.ledger.file import LedgerFile
from growctl.schedule.launch_block import peak_flops
from stages.metrics import Record

UNKNOWN = "unknown"
"""Stands for a device or a precision whose `start` record is lost."""


@dataclass
class _Attempt:
    """The booked part of one attempt, and the open part after it."""

    resumed_from: int = 0
    step: int = 0
    """The step at which the next row begins."""
    seconds: float = 0.0
    """Seconds booked so far, counted from the launch of the attempt."""
    covered: int = 0
    """Number of the attempt's records that rows cover."""
    joules: float | None = None
    """Joules of the GPUs booked so far; None if no row has any."""
    num_records: int = 0
    """Number of the attempt's records read so far."""
    paid_by: str | None = None
    """The run that paid, from the first `reused` record of the attempt on."""
    open: list[Record] = field(default_factory=list)
    """The records that no work row covers yet."""

    @classmethod
    def booked(cls, entry: AttemptEntry, rows: Sequence[WorkEntry]) -> "_Attempt":
        """An attempt with these rows, before any of its records is read."""
        attempt = cls(resumed_from=entry.resumed_from, step=entry.first_step)
        for row in rows:
            attempt.step, attempt.covered = max(attempt.step, row.last_step), max(attempt.covered, row.num_records)
            attempt.paid_by = row.paid_by or attempt.paid_by
            attempt.seconds = _thousandths(attempt.seconds + (row.wall_seconds if row.paid_by is None else 0.0))
            if row.gpu_joules is not None:
                attempt.joules = _thousandths((attempt.joules or 0.0) + row.gpu_joules)
        return attempt

    def take(self, record: Record) -> None:
        """Adds a record to the open part, unless a row covers it already."""
        self.num_records += 1
        if self.num_records > self.covered:
            self.open.append(record)

    def close(
        self, number: int, stage: StageEntry, closed_by: str, device: Mapping[str, Any], reused: Record | None = None
    ) -> WorkEntry:
        """Closes the open part and returns its work row. `reused`: the record of the reuse that closes it."""
        ended, self.open = self.open, []
        first_step, self.step = self.step, max(self.step, self.resumed_from, *(record["step"] for record in ended))
        num_steps, num_devices = self.step - first_step, device["num_devices"]
        seconds = ended[-1]["seconds"]
        wall_seconds = _thousandths(max(0.0, seconds - self.seconds))
        self.seconds, self.covered = max(self.seconds, seconds), self.num_records
        self.paid_by = reused["run"] if reused else self.paid_by
        device_seconds = reused["device_seconds"] if reused else wall_seconds * num_devices
        usage: Record = next((record for record in reversed(ended) if record["event"] == "usage"), {})
        evaluations = [record for record in ended if record["event"] == "evaluation"]
        evaluated = sum(record["num_tokens"] for record in evaluations)
        own_evaluated = sum(record.get("own_context_tokens") or 0 for record in evaluations)
        timed_steps, timed_seconds, timed_to = 0, 0.0, max(first_step, self.resumed_from)
        for record in ended:
            if record["event"] == "train" and (speed := record.get("tokens_per_second")):
                steps = max(0, record["step"] - timed_to)
                timed_steps += steps
                timed_seconds += steps * stage.tokens_per_step / speed
                timed_to = record["step"]
        step_seconds: float | None = None
        if timed_steps or not num_steps:  # untimed steps are as fast as the timed ones
            step_seconds = _thousandths(timed_seconds * num_steps / max(1, timed_steps))
        peak = peak_flops(device.get("peak_flops"), device["device"], device["precision"])
        price = device.get("price_per_device_hour")
        own_evaluation_flops = (stage.own_evaluation_flops_per_token or 0.0) * own_evaluated
        return WorkEntry(
            stage=stage.name,
            attempt=number,
            first_step=first_step,
            last_step=self.step,
            num_records=self.num_records,
            closed_by=closed_by,
            steps=num_steps,
            tokens=num_steps * stage.tokens_per_step,
            flops=stage.step_flops * num_steps,
            recomputed_flops=0.0 if reused else device.get("recomputed_step_flops", 0.0) * num_steps,
            evaluation_flops=stage.evaluation_flops_per_token * evaluated + own_evaluation_flops,
            wall_seconds=device_seconds / num_devices if self.paid_by else wall_seconds,
            device_seconds=device_seconds,
            step_seconds=step_seconds,
            available_flops=None if step_seconds is None or peak is None else step_seconds * num_devices * peak,
            gpu_joules=self._joules_since(usage),
            money=None if price is None else device_seconds / 3600 * price,
            peak_gpu_bytes=usage.get("peak_gpu_bytes"),
            peak_resident_bytes=usage.get("peak_resident_bytes"),
            device=device["device"],
            num_devices=num_devices,
            precision=device["precision"],
            paid_by=self.paid_by,
            recorded_at=utc_now(),
        )

    def _joules_since(self, usage: Record) -> float | None:
        """Joules of the open part, up to its newest `usage` record; books them."""
        booked, total = self.joules, usage.get("gpu_joules")
        if total is None:  # what was used after the last measurement is lost, as the time after the last record is
            return None if booked is None or usage else 0.0
        used = max(0.0, _thousandths(total - (booked or 0.0)))
        self.joules = _thousandths((booked or 0.0) + used)
        return used


class StageBooks:
    """Books one stage's metrics.jsonl into the ledger, from its first line on."""

    def __init__(self, file: LedgerFile, stage: StageEntry) -> None:
        self._file = file
        self._stage = stage
        self._waiting: list[Record] = []
        self._attempts: dict[int, _Attempt] = {}
        self._starts: dict[int, Record] = {}
        rows: dict[int, list[WorkEntry]] = {}
        for row in file.entries(WorkEntry, stage.name):
            rows.setdefault(row.attempt, []).append(row)
        for entry in file.entries(AttemptEntry, stage.name):
            self._attempts[entry.attempt] = _Attempt.booked(entry, rows.get(entry.attempt, ()))

    def add(self, records: Iterable[Record]) -> None:
        """Queues the next records of the file; the next `sync` books them."""
        self._waiting.extend(records)

    def sync(self, records: Iterable[Record] = (), attempt_over: bool = False) -> None:
        """Appends the rows for the records queued since the last sync, followed by `records`.

        Each `checkpoint`, each `reused` and the `end` of an attempt close a work row. The records after the last of
        them become a row when the attempt is over: when a later attempt has started, or with `attempt_over`, when its
        workers have exited. The rows do not depend on when and how often this is called, and records that were booked
        earlier are not booked again. If the `start` of an attempt is lost, the one before supplies its values. After
        an error the ledger is unchanged, and the next call tries again. After a signal the rows may be in the ledger:
        book the file again with new books.
        """
        self.add(records)
        new: dict[int, list[Record]] = {}
        for record in self._waiting:
            new.setdefault(record["attempt"], []).append(record)
            if record["event"] in ("start", "reused"):
                self._starts.setdefault(record["attempt"], record)
        newest = max((*new, *self._attempts), default=0)
        unclosed = {number for number, attempt in self._attempts.items() if attempt.open}
        changed: dict[int, _Attempt] = {}
        with self._file.transaction():
            for number in sorted(new.keys() | unclosed):
                over = attempt_over or number < newest
                if number in new or over:
                    changed[number] = self._book(number, new.get(number, []), over, self._attempts | changed)
        self._attempts |= changed
        self._waiting = []

    def _book(self, number: int, records: Sequence[Record], over: bool, others: dict[int, _Attempt]) -> _Attempt:
        """Appends the rows that `records` add to an attempt, and returns the attempt's new state."""
        if number in others:
            attempt = replace(others[number], open=[*others[number].open])
        else:
            attempt = self._opened(number, records, others)
        for record in records:
            if record["event"] == "evaluation":
                values = self._values(EvaluationEntry, record) | {"by_source": record.get("by_source") or {}}
                self._file.append(EvaluationEntry(**values), once=True)
            elif record["event"] == "anomaly":
                self._file.append(AnomalyEntry(**self._values(AnomalyEntry, record)), once=True)
        for record in records:
            attempt.take(record)
            if attempt.open and record["event"] in ("checkpoint", "end", "reused"):
                reused = record if record["event"] == "reused" else None
                self._file.append(
                    attempt.close(number, self._stage, record["event"], self._device(number), reused=reused)
                )
        if over and attempt.open:
            self._file.append(attempt.close(number, self._stage, "interruption", self._device(number)))
        return attempt

    def _values(self, entry: type, record: Record) -> dict[str, Any]:
        """The fields of a ledger's entry that a record of the stage has."""
        values = {f.name: record.get(f.name) for f in fields(entry) if "derived" not in f.metadata}
        return values | {"stage": self._stage.name}

    def _opened(self, number: int, records: Sequence[Record], others: dict[int, _Attempt]) -> _Attempt:
        """A new attempt, before any of its records is read; appends its row."""
        before = max((earlier for earlier in others if earlier < number), default=0)
        last_step = others[before].step if before else 0
        if number in self._starts:
            resumed_from = self._starts[number]["resumed_from"] or 0
        else:
            resumed_from = min(last_step, records[0]["step"])
        # A checkpoint may be complete although its record was never written. The attempt that resumes from it then
        # books the steps before it.
        entry = AttemptEntry(self._stage.name, number, min(resumed_from, last_step), resumed_from)
        self._file.append(entry)
        return _Attempt.booked(entry, ())

    def _device(self, number: int) -> Mapping[str, Any]:
        """The devices and precision of an attempt, from its `start`, or that of the attempt before if it is lost."""
        before = max((started for started in self._starts if started <= number), default=None)
        unknown = {"device": UNKNOWN, "num_devices": 1, "precision": UNKNOWN}
        return unknown if before is None else self._starts[before]


def utc_now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _thousandths(value: float) -> float:
    """Seconds or joules rounded to the precision of records, so that sums and differences do not depend on their
    order."""
    return round(value, 3)
