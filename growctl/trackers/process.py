"""The process of one tracker of a run: it follows the stages' metrics.jsonl, at the pace of its tracker.

It reads lines of JSON from standard input: the run, then each stage that the run comes to, at last how the run ended.
The input ends without the last one if growctl was killed.
"""

import json
import os
import select
import signal
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from io import RawIOBase
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from growctl.trackers.adapters import TrackedPoint, TrackedRun
from growctl.whole_file import replace_file
from stages.metrics import MetricsReader, Record

POLL_SECONDS = 1.0
"""How often to look for new records."""

MOST_RECORDS = 1000
"""Records of a batch; what the tracker has is noted after each."""

ORPHAN_SECONDS = 60
"""How long the tracker may take to write what it has after growctl was killed."""

NAMES = {
    "train": {"loss": "loss/training"}
    | {name: name for name in ("learning_rate", "gradient_norm", "tokens_per_second")},
    "evaluation": {"loss": "loss/validation", "own_context_loss": "loss/validation_at_own_context"}
    | {name: name for name in ("perplexity", "bits_per_byte", "top1", "top5")},
    "anomaly": {"value": "rejected_loss"},
}
"""Names of values in trackers, by event and key of a record."""


@dataclass(frozen=True)
class TrackedStage:
    """A stage or a release, and where it begins on the axes of the whole run."""

    name: str
    index: int
    metrics: str
    """The path of its metrics.jsonl."""
    num_parameters: int
    first_step: int
    first_tokens: int
    first_flops: float
    tokens_per_step: int
    step_flops: float
    prefix: str
    """Of its values' names: a release and the stage after it share the x axis, so the release has lines of its own."""

    def point(self, row: int, record: Record) -> TrackedPoint | None:
        """What trackers show of a record. Values that are null, because they were not finite, are left out."""
        values = {name: record.get(key) for key, name in NAMES.get(record["event"], {}).items()}
        for source, measured in (record.get("by_source") or {}).items():
            values[f"loss/validation/{source}"] = measured["loss"]
        shown = {f"{self.prefix}{name}": float(value) for name, value in values.items() if value is not None}
        if not shown:
            return None
        step = record["step"]
        return TrackedPoint(
            row=row,
            stage=self.name,
            index=self.index,
            step=self.first_step + step,
            tokens=self.first_tokens + step * self.tokens_per_step,
            flops=self.first_flops + step * self.step_flops,
            values=shown | {"parameters": float(self.num_parameters)},
        )


def follow(lines: RawIOBase) -> None:
    """Gives a tracker what it does not have yet of a run, until the run has ended.

    The run's directory remembers the tracker's id of the run, and how many records it has of each stage.
    """
    start = json.loads(lines.readline())
    path, store = Path(start["memory"]), Path(start["store"])
    memory: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {"id": None, "records": {}}
    store.mkdir(parents=True, exist_ok=True)
    adapter = resolve_name(start["adapter"])(TrackedRun(**start["run"]), store, memory["id"])
    memory["id"], records = adapter.id, memory["records"]
    replace_file(path, json.dumps(memory).encode())
    stage: TrackedStage | None = None
    unread: Iterable[Record] = ()
    message: dict[str, Any] = {}
    while "status" not in message:
        message = _next_message(lines)
        while stage and (batch := list(islice(unread, MOST_RECORDS))):
            points = [stage.point(row, record) for row, record in enumerate(batch, sum(records.values()))]
            adapter.log([point for point in points if point])
            records[stage.name] = records.get(stage.name, 0) + len(batch)
            replace_file(path, json.dumps(memory).encode())
        if "stage" in message:
            stage = TrackedStage(**message["stage"])
            unread = MetricsReader(Path(stage.metrics))
            deque(islice(unread, records.get(stage.name, 0)), maxlen=0)  # what it has
    adapter.finish(message["status"])


def _next_message(lines: RawIOBase) -> dict[str, Any]:
    """The next message; empty if none comes within POLL_SECONDS, how the run ended if growctl was killed."""
    if not select.select([lines], [], [], POLL_SECONDS)[0]:
        return {}
    line = lines.readline()
    if line.endswith(b"\n"):
        return json.loads(line)
    signal.alarm(ORPHAN_SECONDS)
    return {"status": "interrupted"}


if __name__ == "__main__":
    os.nice(10)  # the ranks come first
    with open(0, "rb", buffering=0) as lines_of_growctl:
        follow(lines_of_growctl)
