"""Runs with invented records, given to real trackers and to stand-ins that fail."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from growctl.ladder.stage_plans import plan_stages
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.trackers import tracking
from growctl.trackers.kinds import KINDS, Kind
from growctl.trackers.process import serve
from growctl.trackers.protocol import TrackedRun
from growctl.trackers.tracking import Tracking
from stages.metrics import Record
from tests.growctl.schedules import changed, parse
from tests.workers import HANG_SECONDS, REPOSITORY


class FeedHere:
    """Stands in for a Feed: gives a tracker its messages in this process, once there are no more."""

    def __init__(self, name: str, arguments: list[str], first: Any, log: Path, tell: Callable[[str], None]) -> None:
        self.name, self._arguments, self._messages = name, arguments, list[bytes]()
        self.offer(first)
        Path(arguments[-1]).parent.mkdir(parents=True, exist_ok=True)

    def offer(self, message: dict[str, Any]) -> None:
        self._messages.append(json.dumps(message).encode())

    end = offer

    def wait(self, deadline: float) -> None:
        serve(self._messages, *self._arguments)


def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers run in this process."""
    monkeypatch.setattr(tracking, "Feed", FeedHere)


def stand_in(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """Makes the tracker `tensorboard` a stand-in of that class."""
    monkeypatch.setitem(KINDS, "tensorboard", Kind(f"{kind.__module__}:{kind.__name__}", (), ()))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


def calls(runs: Path) -> list[Any]:
    """What Noting was given in all runs of `runs`."""
    text = RunsPaths(runs).tracker_store("tensorboard").joinpath("calls.jsonl").read_text()
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


def feed_ladder(tracking: Tracking, schedule: Schedule, small: list[Record], large: list[Record]) -> None:
    """Gives the records of both stages to the trackers, as the runner does at each start."""
    plans = plan_stages(schedule)
    for plan, records in zip(plans, (small, large), strict=True):
        tracking.from_the_start(plan, plans)
        tracking.records(records[:2])
        tracking.records(records[2:])


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tracker is stopped because this machine is busy."""
    monkeypatch.setattr(tracking, "FINISH_SECONDS", HANG_SECONDS)
    monkeypatch.setattr(tracking, "STOPPED_SECONDS", HANG_SECONDS)


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a user who has set no tracker's variables."""
    for variable in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_"))]:
        monkeypatch.delenv(variable)
