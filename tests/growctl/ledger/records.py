"""Records of a stage as workers write them, and the rows that a ledger makes of them, for tests."""

import sqlite3
from dataclasses import dataclass
from typing import Any, Self

from hypothesis import strategies as st

from growctl.ledger.entries import RunEntry, ScoreEntry, StageEntry
from growctl.ledger.ledger import Ledger
from model.flops import Flops

RUN = RunEntry("quick", "quickstart", None, None, 1, "data/bytes", "f00d")
BASE = StageEntry("0-small", 800_000, 200_000, 4000, 40, 100, Flops(6e5, 2e5, 1e5), 3000.0)
GROWN = StageEntry("1-large", 2_400_000, 200_000, 4000, 40, 100, Flops(2e6, 2e5, 1e5), 8000.0, 10.0)

SCORE = ScoreEntry("0-small", "final", "a" * 64, "2026-01-01T00:00:00.000+00:00", "piqa", "acc", "none", 0.6, 0.01, 100)


class Metrics:
    """Writes the records of a stage, one attempt after another. A step takes one second, the start-up ten.

    A device costs 3.6 an hour. A step of a device uses 100 J.
    """

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def start(self, attempt: int, resumed_from: int | None = None, num_devices: int = 2, **changed: Any) -> Self:
        self.attempt, self.step, self.seconds = attempt, resumed_from or 0, 9.0
        self.num_devices, self.gpu_joules = num_devices, 0.0
        values: dict[str, Any] = {"num_devices": num_devices, "resumed_from": resumed_from, "device": "cpu"}
        values |= {"precision": "fp32", "recomputed_step_flops": 0.0, "peak_flops": 1e6, "price_per_device_hour": 3.6}
        return self._write("start", **values | changed)

    def train(self, num_steps: int) -> Self:
        self.step += num_steps
        self.seconds += num_steps - 1
        self.gpu_joules += 100.0 * num_steps * self.num_devices
        seen = self.step * 100
        return self._write("train", loss=2.0, tokens_seen=seen, tokens_per_second=100.0, data_wait_seconds=0.0)

    def usage(self, gpu_bytes: int = 5 * 10**9, **values: Any) -> Self:
        """Takes no time."""
        used = {"gpu_joules": self.gpu_joules, "peak_gpu_bytes": gpu_bytes}
        self.seconds -= 1
        return self._write("usage", **used | {"peak_resident_bytes": 10**9} | values)

    def evaluate(self, point: str = "interval", loss: float = 1.5, **values: Any) -> Self:
        figures = {"loss": loss, "perplexity": 2.718**loss, "bits_per_byte": loss / 0.693}
        return self._write("evaluation", point=point, **figures, num_tokens=1000, precision="fp32", **values)

    def checkpoint(self) -> Self:
        return self._write("checkpoint", path=f"step_{self.step:08}")

    def anomaly(self, **values: Any) -> Self:
        found = {"kind": "spike", "value": 9.5, "threshold": 6.0, "action": "skip", "first_step": 7, "num_steps": 1}
        return self._write("anomaly", **found | values)

    def end(self) -> Self:
        return self._write("end")

    def _write(self, event: str, **values: Any) -> Self:
        self.seconds += 1
        head = {"event": event, "attempt": self.attempt, "step": self.step, "seconds": self.seconds}
        self.records.append(head | values)
        return self


def rows(ledger: Ledger, table: str) -> list[dict[str, Any]]:
    with sqlite3.connect(ledger.path) as connection:
        connection.row_factory = sqlite3.Row
        found = [dict(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY entry")]
    written = ("entry", "recorded_at")  # when and in which order
    return [{name: value for name, value in row.items() if name not in written} for row in found]


def extents(ledger: Ledger) -> list[tuple[int, int, int, str]]:
    return [(r["attempt"], r["first_step"], r["last_step"], r["closed_by"]) for r in rows(ledger, "work")]


def killed_once(*, resumed_from: int | None) -> Metrics:
    """20 steps and a checkpoint, then 7 steps and a kill, then on to step 40."""
    metrics = Metrics().start(1).train(20).checkpoint().train(5).evaluate(loss=1.9).train(2)
    return metrics.start(2, resumed_from).train(40 - (resumed_from or 0)).evaluate("final").end()


NUM_STEPS = 12
"""Of the stage that `killed_runs` trains."""


@dataclass(frozen=True)
class Done:
    """What one attempt did, as its workers know it."""

    resumed_from: int
    last_step: int
    unrecorded: int  # steps after the last record, up to a complete checkpoint
    num_devices: int
    seconds: float
    peak_bytes: int
    recomputed: float  # FLOPs of a step that activation checkpointing added

    @property
    def steps(self) -> int:
        return self.last_step - self.resumed_from


@st.composite
def killed_runs(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[Done]]:
    """The records of a stage that is killed a few times at any record, and what each attempt did.

    As in a worker, `usage` precedes each line of `train`, `checkpoint` and `end`.
    """
    records: list[dict[str, Any]] = []
    done: list[Done] = []
    durable = [0]
    for number in range(1, 7):
        resumed_from = draw(st.sampled_from(durable[-2:]))  # the newest checkpoint, or the one before if broken
        durable = [step for step in durable if step <= resumed_from]
        recomputed = draw(st.sampled_from([0.0, 3e5]))  # the setting may change when a run resumes
        metrics = Metrics()
        metrics.start(number, resumed_from or None, draw(st.integers(1, 4)), recomputed_step_flops=recomputed)
        metrics.usage(gpu_bytes=draw(st.integers(1, 10**9)))
        saved_at: list[tuple[int, int]] = []
        for step in range(resumed_from + 1, NUM_STEPS + 1):
            metrics.train(1).usage()
            if draw(st.booleans()):
                metrics.evaluate()
            if step < NUM_STEPS and draw(st.booleans()):
                metrics.usage().checkpoint()
                saved_at.append((len(metrics.records), step))
        metrics.evaluate("final").usage().end()
        total = len(metrics.records)
        survives = total if number == 6 else draw(st.integers(2, total))
        kept = metrics.records[:survives]
        durable += [step for count, step in saved_at if count <= survives]
        usage = [record for record in kept if record["event"] == "usage"]
        last_step = max(record["step"] for record in kept)
        unrecorded = int(survives < total and last_step < NUM_STEPS - 1 and draw(st.booleans()))
        durable = [last_step + 1] if unrecorded else durable
        peak = max(record["peak_gpu_bytes"] for record in usage)
        done.append(
            Done(resumed_from, last_step, unrecorded, metrics.num_devices, kept[-1]["seconds"], peak, recomputed)
        )
        records += kept
        if survives == total:
            return records, done
    raise AssertionError("the last attempt comes to the end")
