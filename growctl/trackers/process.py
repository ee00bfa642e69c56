"""The process of a run's trackers: each in a thread of its own, so that one that hangs or raises leaves others alone.

It reads lines of JSON: first the run and its trackers, then each stage that the run comes to, at last how it ended. The
input ends without the last one if growctl was killed. The threads follow the stages' metrics.jsonl, at the pace of
their trackers. A line that the process prints is a warning for the user; what trackers print goes to the log.
"""

import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from pydantic import TypeAdapter

from growctl.ladder.stage_plans import paths_of, plan_stages, with_releases
from growctl.runs_dir import RunPaths
from growctl.schedule.blocks import Schedule
from growctl.text.formatting import short_count
from growctl.trackers.adapters import TrackedPoint, TrackedRun
from growctl.whole_file import replace_file
from model.errors import Failure, UserError
from stages.metrics import MetricsReader, Record
from stages.spec import progress_at

POLL_SECONDS = 1.0
"""How often a thread looks for new records."""

MOST_ENTRIES = 1000
"""Entries of a batch; what a tracker has is noted after each."""

ORPHAN_SECONDS = 60.0
"""How long the trackers may take to write what they have after growctl was killed."""

NAMES = {
    "train": {
        "loss": "loss/training",
        "learning_rate": "learning_rate",
        "gradient_norm": "gradient_norm",
        "tokens_per_second": "tokens_per_second",
    },
    "evaluation": {
        "loss": "loss/validation",
        "own_context_loss": "loss/validation_at_own_context",
        "perplexity": "perplexity",
        "bits_per_byte": "bits_per_byte",
    },
}
"""Names of values in trackers, by event and key of a record."""

Message = dict[str, Any]


class StageInRun:
    """A stage or a release: turns its records into points on the axes of the whole run."""

    def __init__(self, schedule: Schedule, name: str, num_steps: Sequence[int]) -> None:
        """`num_steps`: those of all stages; a slope may have ended some before their budgets."""
        plans = plan_stages(schedule, num_steps)
        self.plan = plan = next(each for each in with_releases(schedule, plans) if each.name == name)
        before = [other for other in plans if other.index < plan.index or other.name == plan.branch_of]
        base = schedule.base
        sizes = [base.num_parameters if base else None, *(other.num_parameters for other in plans)]
        self._size_before = sizes[plan.index] if plan.is_grown else None
        self._first_tokens = ((base and base.tokens) or 0) + sum(other.budget_tokens for other in before)
        self._first_flops = (schedule.base_flops or 0.0) + sum(other.flops.total for other in before)

    def growth(self) -> TrackedPoint | None:
        """The growth that the stage begins with, if it begins with one."""
        before, after = self._size_before, self.plan.num_parameters
        if before is None:
            return None
        text = f"grown to stage {self.plan.name}: {short_count(before)} -> {short_count(after)} parameters"
        return self._at(0, {"growth/parameters_before": before, "growth/parameters_after": after}, "growth", text)

    def point(self, record: Record) -> TrackedPoint | None:
        """What trackers show of a record. Values that are null, because they were not finite, are left out."""
        step, event = record["step"], record["event"]
        if event == "anomaly":
            text = f"{record['kind']} update at step {step} of stage {self.plan.name}: {record['action']}"
            return self._at(step, {"anomaly/loss": record["value"]}, "anomaly", text)
        if event not in NAMES:
            return None
        values = {name: record.get(key) for key, name in NAMES[event].items()}
        if event == "train":
            values["flops_per_second"] = (
                record["tokens_per_second"] * self.plan.step_flops.total / self.plan.tokens_per_step
            )
            spans = {"ramp": self.plan.ramp_steps, "anneal": self.plan.anneal_steps}
            values |= {name: progress_at(step - 1, steps) for name, steps in spans.items() if steps and step}
        for source, measured in (record.get("by_source") or {}).items():
            values[f"loss/validation/{source}"] = measured["loss"]
        # A release and the stage after it share the x axis, so the release has lines of its own.
        prefix = "release/" if self.plan.branch_of else ""
        return self._at(step, {f"{prefix}{name}": value for name, value in values.items()})

    def _at(self, step: int, values: Mapping[str, float | None], event: str = "", text: str = "") -> TrackedPoint:
        return TrackedPoint(
            stage=self.plan.name,
            index=self.plan.index,
            step=self.plan.first_step + step,
            tokens=self._first_tokens + step * self.plan.tokens_per_step,
            flops=self._first_flops + step * self.plan.step_flops.total,
            num_parameters=self.plan.num_parameters,
            values={name: float(value) for name, value in values.items() if value is not None},
            event=event,
            text=text,
        )


@dataclass
class TrackerMemory:
    """What the run's directory remembers of a tracker."""

    id: str | None = None
    """The tracker's id of the run; None if no earlier start had one."""
    entries: dict[str, int] = field(default_factory=dict)
    """How many entries the tracker has of each stage."""
    rows: int = 0
    """How many points it has."""


class UnreadEntries:
    """What a tracker does not have yet of a stage: its growth, then an entry for each record."""

    def __init__(self, run: RunPaths, stage: StageInRun, num_known: int) -> None:
        self._stage, self._skip = stage, num_known
        self._reader = MetricsReader(paths_of(run, stage.plan).metrics)
        self._begun = False

    def batches(self) -> Iterator[list[TrackedPoint | None]]:
        """The entries that are there by now, and were not at the last call; None for records that are not shown."""
        records = iter(self._reader)
        while batch := [self._stage.point(record) for record in islice(records, MOST_ENTRIES)]:
            if not self._begun:
                self._begun = True
                batch.insert(0, self._stage.growth())
            new, self._skip = batch[self._skip :], max(0, self._skip - len(batch))
            if new:
                yield new


class TrackerThread(threading.Thread):
    """The thread of one tracker."""

    def __init__(self, start: Message, tracker: Message, warn: Callable[[str], None]) -> None:
        super().__init__(daemon=True)
        self._start, self._tracker, self._warn = start, tracker, warn
        self.messages: queue.Queue[Message] = queue.Queue()

    def run(self) -> None:
        """Follows the run to its end; a tracker that raises is given no more."""
        try:
            self._follow()
        except Exception as error:
            traceback.print_exc()
            self.warn(f"stopped: {type(error).__name__}: {error}; training goes on without it")

    def warn(self, what: str) -> None:
        """Warns the user."""
        self._warn(f"tracker {self._tracker['name']} {what}")

    def _follow(self) -> None:
        run, paths = TrackedRun(**self._start["run"]), RunPaths(Path(self._start["directory"]))
        schedule = Schedule.model_validate(run.schedule)
        path, store = paths.tracker_memory(self._tracker["name"]), Path(self._tracker["store"])
        memory = TrackerMemory()
        with suppress(OSError, ValueError):  # missing or damaged: the tracker begins a new run
            memory = TypeAdapter(TrackerMemory).validate_json(path.read_bytes())
        store.mkdir(parents=True, exist_ok=True)
        adapter = resolve_name(self._tracker["adapter"])(run, store, memory.id)
        memory.id = adapter.id
        replace_file(path, TypeAdapter(TrackerMemory).dump_json(memory))
        stage = ""
        message: Message | None = None
        unread: UnreadEntries | None = None
        while message is None or "status" not in message:
            if message:
                stage = message["stage"]
                in_run = StageInRun(schedule, stage, message["num_steps"])
                unread = UnreadEntries(paths, in_run, memory.entries.get(stage, 0))
            try:
                message = self.messages.get(timeout=POLL_SECONDS)
            except queue.Empty:
                message = None
            for entries in unread.batches() if unread else iter(()):
                points = [entry for entry in entries if entry]
                adapter.log(points, memory.rows)
                memory.entries[stage] = memory.entries.get(stage, 0) + len(entries)
                memory.rows += len(points)
                replace_file(path, TypeAdapter(TrackerMemory).dump_json(memory))
        adapter.finish(message["status"], _figures(paths.ledger))


def _figures(ledger: Path) -> dict[str, float]:
    """Figures of each stage from the report, as `table/STAGE/COLUMN`; none if the ledger cannot be read."""
    from growctl.runs.find import read_run

    with suppress(UserError, Failure, OSError):
        figures = {
            f"table/{stage.name}/{column}": value
            for stage in read_run(ledger).parts
            for column, value in (
                ("num_parameters", stage.num_parameters),
                ("trained_tokens", stage.train_tokens),
                ("cumulative_flops", stage.cumulative_flops),
                ("device_seconds", stage.device_seconds),
                ("validation_loss", stage.validation_loss),
                ("perplexity", stage.perplexity),
                ("bits_per_byte", stage.bits_per_byte),
            )
        }
        return {name: float(value) for name, value in figures.items() if value is not None}
    return {}


def serve(lines: Iterable[bytes], warn: Callable[[str], None]) -> bool:
    """Feeds the trackers until the messages end, and waits for them; returns whether all have ended."""
    messages = (json.loads(line) for line in lines if line.endswith(b"\n"))
    start = next(messages)
    workers = [TrackerThread(start, tracker, warn) for tracker in start["trackers"]]
    for worker in workers:
        worker.start()
    killed: Message = {"status": "interrupted", "seconds": ORPHAN_SECONDS}
    message: Message = start
    for message in chain(messages, [killed]):
        for worker in workers:
            worker.messages.put(message)
        if "status" in message:
            break
    deadline = time.monotonic() + message["seconds"]
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
        if worker.is_alive():
            worker.warn("did not finish in time and was stopped")
    return not any(worker.is_alive() for worker in workers)


def main() -> None:
    """Serves the runner that holds the other ends of this process's standard input and output."""
    os.nice(10)  # the ranks come first
    to_user = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what trackers print

    def warn(text: str) -> None:
        with suppress(OSError):  # growctl was killed
            print(text, file=to_user)

    if not serve(sys.stdin.buffer, warn):
        os._exit(1)  # the thread that hangs may keep the interpreter from exiting


if __name__ == "__main__":
    main()
