"""Runs with invented records, given to real trackers and to stand-ins that fail."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from growctl.ladder.stage_plans import paths_of, plan_stages
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.trackers import tracking
from growctl.trackers.adapters import ADAPTERS, PACKAGES, TrackedRun
from growctl.trackers.process import follow
from growctl.trackers.tracking import Tracking
from stages.metrics import MetricsWriter, Record
from tests.growctl.schedules import changed, parse
from tests.workers import HANG_SECONDS, REPOSITORY


class ProcessHere:
    """Stands in for the process of a tracker: a thread of this process that reads the same pipe."""

    def __init__(self, *_: Any, **__: Any) -> None:
        lines, stdin = os.pipe()
        self.stdin = os.fdopen(stdin, "wb", 0)
        self._thread = threading.Thread(target=self._follow, args=(lines,), daemon=True)
        self._thread.start()

    def _follow(self, lines: int) -> None:
        with open(lines, "rb", buffering=0) as messages:
            follow(messages)

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, seconds: float | None = None) -> int:
        self._thread.join(seconds)
        assert self.poll() == 0
        return 0


def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers run in this process."""
    stand_ins = SimpleNamespace(Popen=ProcessHere, PIPE=None, TimeoutExpired=Exception)
    monkeypatch.setattr(tracking, "subprocess", stand_ins)


def stand_in(monkeypatch: pytest.MonkeyPatch, kind: type, tracker: str = "tensorboard") -> None:
    """Makes a tracker a stand-in of that class."""
    monkeypatch.setitem(ADAPTERS, tracker, kind)
    monkeypatch.setitem(PACKAGES, tracker, ())
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


def calls(runs: Path, tracker: str = "tensorboard") -> list[Any]:
    """What Noting was given in all runs of `runs`."""
    file = RunsPaths(runs).tracker_store(tracker) / "calls.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def schedule_with(*trackers: str, **changes: Any) -> Schedule:
    """A schedule of the stages `small` (16 steps of 128 tokens) and `large` (20), grown in between."""
    schedule = parse(changed({"trackers": list(trackers), "name": "tiny"} | changes))
    assert schedule.name == "tiny"
    return schedule


def tracking_of(
    schedule: Schedule, runs: Path, tell: Callable[[str], None] = print, name: str = "tiny", kind: str = "ladder"
) -> Tracking:
    RunPaths(runs / name).directory.mkdir(parents=True, exist_ok=True)
    run = TrackedRun(name, "tiny", kind, schedule.model_dump(mode="json"))
    return Tracking(run, schedule, RunsPaths(runs), tell)


def line(event: str, step: int, attempt: int = 1, **values: Any) -> Record:
    return {"event": event, "attempt": attempt, "step": step, "seconds": float(step)} | values


def trained(step: int, attempt: int = 1) -> Record:
    figures = {
        "learning_rate": 1e-3,
        "gradient_norm": 0.5,
        "tokens_seen": 128 * step,
        "tokens_per_second": 1000.0,
        "data_wait_seconds": 0.0,
    }
    return line("train", step, attempt, loss=5.0 - step / 10, **figures)


def evaluated(step: int, point: str = "interval", attempt: int = 1) -> Record:
    figures = {
        "loss": 4.0,
        "perplexity": 54.6,
        "bits_per_byte": 2.5,
        "num_tokens": 100,
        "by_source": None,
        "precision": "fp32",
    }
    return line("evaluation", step, attempt, point=point, **figures)


def started(attempt: int = 1, resumed_from: int | None = None) -> Record:
    figures = {"device": "cpu", "num_devices": 1, "precision": "fp32", "zero_stage": 1, "converted": False}
    return line("start", resumed_from or 0, attempt, resumed_from=resumed_from, **figures)


SMALL = [started(), trained(5), evaluated(10), trained(10), trained(16), evaluated(16, "final")]
LARGE = [started(), evaluated(0, "after_growth"), trained(1), trained(20), evaluated(20, "final")]


def write_records(metrics: Path, records: list[Record]) -> None:
    """Appends those records to metrics.jsonl that it does not have yet."""
    metrics.parent.mkdir(parents=True, exist_ok=True)
    num_written = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    for record in records[num_written:]:
        writer = MetricsWriter(metrics, record["attempt"])
        writer.write(**{key: value for key, value in record.items() if key != "attempt"})
        writer.close()


def feed_ladder(
    tracking: Tracking, schedule: Schedule, runs: Path, small: list[Record], large: list[Record], name: str = "tiny"
) -> None:
    """Writes the records of both stages and shows them to the trackers, as a run does at each start."""
    plans = plan_stages(schedule)
    for plan, records in zip(plans, (small, large), strict=True):
        metrics = paths_of(RunPaths(runs / name), plan).metrics
        write_records(metrics, records[:2])
        tracking.from_the_start(plan, plans)
        write_records(metrics, records)


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tracker is stopped because this machine is busy."""
    monkeypatch.setattr(tracking, "FINISH_SECONDS", HANG_SECONDS)
    monkeypatch.setattr(tracking, "STOPPED_SECONDS", HANG_SECONDS)


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a user who has set no tracker's variables."""
    for variable in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_"))]:
        monkeypatch.delenv(variable)
