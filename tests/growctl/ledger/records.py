"""Records of a stage as workers write them, and the rows that a ledger makes of them, for tests."""

import sqlite3
from typing import Any

from growctl.ledger.entries import RunEntry, ScoreEntry, StageEntry
from growctl.ledger.ledger import Ledger
from model.flops import Flops

RUN = RunEntry("quick", "quickstart", None, None, 1, "data/bytes", "f00d")
BASE = StageEntry("0-small", 800_000, 200_000, 4000, 40, 100, Flops(6e5, 2e5, 1e5), 3000.0)
GROWN = StageEntry("1-large", 2_400_000, 200_000, 4000, 40, 100, Flops(2e6, 2e5, 1e5), 8000.0)

SCORE = ScoreEntry("0-small", "final", "a" * 64, "2026-01-01T00:00:00.000+00:00", "piqa", "acc", "none", 0.6, 0.01, 100)


class Metrics:
    """Writes the records of a stage, one attempt after another. A step takes one second, the start-up ten.

    A device costs 3.6 an hour. A step of a device uses 100 J.
    """

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def start(
        self, attempt: int, resumed_from: int | None = None, num_devices: int = 2, recomputed: float = 0.0
    ) -> None:
        self.attempt, self.step, self.seconds = attempt, resumed_from or 0, 9.0
        self.num_devices, self.gpu_joules = num_devices, 0.0
        self._write(
            "start",
            device="cpu",
            num_devices=num_devices,
            resumed_from=resumed_from,
            precision="fp32",
            recomputed_step_flops=recomputed,
            peak_flops=1e6,
            price_per_device_hour=3.6,
        )

    def train(self, num_steps: int) -> None:
        self.step += num_steps
        self.seconds += num_steps - 1
        self.gpu_joules += 100.0 * num_steps * self.num_devices
        self._write("train", loss=2.0, tokens_seen=self.step * 100, tokens_per_second=100.0, data_wait_seconds=0.0)

    def usage(self, gpu_bytes: int = 5 * 10**9, **values: Any) -> None:
        """Takes no time."""
        used = {"gpu_joules": self.gpu_joules, "peak_gpu_bytes": gpu_bytes}
        self.seconds -= 1
        self._write("usage", **used | {"peak_resident_bytes": 10**9} | values)

    def evaluate(self, point: str = "interval", loss: float = 1.5) -> None:
        figures = {"loss": loss, "perplexity": 2.718**loss, "bits_per_byte": loss / 0.693}
        self._write("evaluation", point=point, **figures, num_tokens=1000, precision="fp32")

    def checkpoint(self) -> None:
        self._write("checkpoint", path=f"step_{self.step:08}")

    def anomaly(self, **values: Any) -> None:
        found = {"kind": "spike", "value": 9.5, "threshold": 6.0, "action": "skip", "first_step": 7, "num_steps": 1}
        self._write("anomaly", **found | values)

    def end(self) -> None:
        self._write("end")

    def _write(self, event: str, **values: Any) -> None:
        self.seconds += 1
        head = {"event": event, "attempt": self.attempt, "step": self.step, "seconds": self.seconds}
        self.records.append(head | values)


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
    metrics = Metrics()
    metrics.start(1)
    metrics.train(20)
    metrics.checkpoint()
    metrics.train(5)
    metrics.evaluate(loss=1.9)
    metrics.train(2)
    metrics.start(2, resumed_from=resumed_from)
    metrics.train(40 - (resumed_from or 0))
    metrics.evaluate("final")
    metrics.end()
    return metrics
