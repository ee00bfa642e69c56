"""Writes metrics.jsonl as workers do, from invented records, for tests of what the report reads there."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stages.metrics import MetricsWriter
from stages.stage_dir import StagePaths

_START = {"device": "cpu", "num_devices": 2, "precision": "fp32", "zero_stage": 1, "resumed_from": None}
_FIGURES = {"loss": 2.0, "perplexity": 7.4, "bits_per_byte": 2.9}
DEFAULTS: dict[str, dict[str, Any]] = {
    "start": {
        **_START,
        "converted": False,
        "recomputed_step_flops": 0.0,
        "peak_flops": None,
        "price_per_device_hour": None,
    },
    "train": {
        "loss": 2.0,
        "learning_rate": 1e-3,
        "gradient_norm": 0.5,
        "tokens_per_second": 100.0,
        "data_wait_seconds": 0.0,
    },
    "usage": {"gpu_joules": None, "peak_gpu_bytes": None, "peak_resident_bytes": None},
    "evaluation": {"point": "interval", "precision": "fp32", **_FIGURES, "num_tokens": 1000, "by_source": None},
    "checkpoint": {"path": "step_00000001"},
    "reused": {**{key: _START[key] for key in ("device", "num_devices", "precision")}, "device_seconds": 1.0},
}
"""What a record has where a test does not care, by event."""

TOKENS_PER_STEP = 100


def write_metrics(stage: StagePaths, records: Iterable[dict[str, Any]]) -> Path:
    """Writes the metrics.jsonl of a stage; returns its path."""
    stage.directory.mkdir(parents=True, exist_ok=True)
    for record in records:
        event, step = record["event"], record["step"]
        values = DEFAULTS.get(event, {}) | {"tokens_seen": step * TOKENS_PER_STEP} if event == "train" else {}
        values = DEFAULTS.get(event, {}) | values | record
        head = {name: values.pop(name) for name in ("event", "attempt", "step", "seconds")}
        writer = MetricsWriter(stage.metrics, head["attempt"])
        writer.write(event, step, head["seconds"], **values)
        writer.close()
    return stage.metrics


def trained(attempt: int, steps: Sequence[int], losses: Sequence[float | None] | None = None) -> list[dict[str, Any]]:
    """A `train` line at each of `steps`, one second a step."""
    values = losses or [2.0] * len(steps)
    return [
        {"event": "train", "attempt": attempt, "step": step, "seconds": 10.0 + step, "loss": loss}
        for step, loss in zip(steps, values, strict=True)
    ]
