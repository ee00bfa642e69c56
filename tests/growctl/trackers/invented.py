"""Runs with invented records, given to real trackers and to stand-ins that fail."""

import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from growctl.ladder.stage_plans import StagePlan, paths_of, plan_stages
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.trackers import tracking
from growctl.trackers.adapters import ADAPTERS, PACKAGES, TrackedRun
from growctl.trackers.process import follow
from growctl.trackers.tracking import Tracking
from stages.metrics import MetricsWriter, Record
from tests.growctl.schedules import changed, parse
from tests.stages.test_metrics import EVENTS
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


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tracker is stopped because this machine is busy."""
    monkeypatch.setattr(tracking, "FINISH_SECONDS", HANG_SECONDS)
    monkeypatch.setattr(tracking, "STOPPED_SECONDS", HANG_SECONDS)


def calls(runs: Path, tracker: str = "tensorboard") -> list[Any]:
    """What Noting was given in all runs of `runs`."""
    file = RunsPaths(runs).tracker_store(tracker) / "calls.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def schedule_with(*trackers: str, **changes: Any) -> Schedule:
    """A schedule of the stages `small` (16 steps of 128 tokens) and `large` (20), grown in between."""
    return parse(changed({"trackers": list(trackers), "name": "tiny"} | changes))


def tracking_of(
    schedule: Schedule, runs: Path, tell: Callable[[str], None] = print, name: str = "tiny", kind: str = "ladder"
) -> Tracking:
    RunPaths(runs / name).directory.mkdir(parents=True, exist_ok=True)
    run = TrackedRun(name, "tiny", kind, schedule.model_dump(mode="json"))
    return Tracking(run, schedule, RunsPaths(runs), tell)


def record(event: str, step: int, **values: Any) -> Record:
    return {"event": event, "attempt": 1, "step": step, "seconds": float(step)} | EVENTS[event] | values


def trained(step: int, **values: Any) -> Record:
    return record("train", step, **{"loss": 5.0 - step / 10} | values)


def evaluated(step: int, point: str = "interval", **values: Any) -> Record:
    return record("evaluation", step, point=point, **values)


STARTED = record("start", 0)
SMALL = [STARTED, trained(5), evaluated(10), trained(10), trained(16), evaluated(16, "final")]
LARGE = [STARTED, evaluated(0, "after_growth"), trained(1), trained(20), evaluated(20, "final")]


def feed(
    trackers: Tracking, plan: StagePlan, plans: Sequence[StagePlan], runs: Path, records: list[Record], name: str
) -> None:
    """Writes the records that a stage does not have yet and shows them to the trackers, as a run does at each start."""
    metrics = paths_of(RunPaths(runs / name), plan).metrics
    metrics.parent.mkdir(parents=True, exist_ok=True)
    for end in (2, len(records)):
        num_written = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        writer = MetricsWriter(metrics, attempt=1)
        for each in records[num_written:end]:
            writer.write(**{key: value for key, value in each.items() if key != "attempt"})
        writer.close()
        if end == 2:
            trackers.from_the_start(plan, plans)


def feed_ladder(
    trackers: Tracking, schedule: Schedule, runs: Path, small: list[Record], large: list[Record], name: str = "tiny"
) -> None:
    """Feeds both stages."""
    plans = plan_stages(schedule)
    for plan, records in zip(plans, (small, large), strict=True):
        feed(trackers, plan, plans, runs, records, name)
