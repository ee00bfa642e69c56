"""What a stage recorded while it trained: the log lines that still count, and where each attempt's time went.

Reads metrics.jsonl. Steps that a later attempt repeated do not count. Steps that were taken over from another run are
read from that run, if it still exists. Damaged and missing files leave gaps, and a note for the reader.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from growctl.analysis.runs import RunReport, StageReport
from growctl.runs_dir import RunPaths
from growctl.schema.known_devices import peak_flops
from stages.counted import counted
from stages.metrics import Record, parse_line
from stages.stage_dir import StagePaths

Phase = Literal["steps", "data", "evaluation", "checkpoints", "start-up", "other"]
"""What an attempt did: `data` is waiting for the next micro-batch, `start-up` includes loading the checkpoint that it
starts from, `checkpoints` includes the stage's final weights."""

_USAGE = b'{"event": "usage",'
_SAVING = ("checkpoint", "saved", "end")


class Span(NamedTuple):
    """What an attempt did from the span before on."""

    until: float
    """Wall seconds since the attempt was launched."""
    phase: Phase


@dataclass(frozen=True)
class Recorded:
    """What a stage recorded. One value of each column for each `train` line; NaN stands for what is not known."""

    step: "array[int]" = field(default_factory=lambda: array("q"))
    """Optimizer steps of the stage, ascending."""
    loss: "array[float]" = field(default_factory=lambda: array("d"))
    """Training loss, nats per token: the mean over the steps since the line before."""
    learning_rate: "array[float]" = field(default_factory=lambda: array("d"))
    gradient_norm: "array[float]" = field(default_factory=lambda: array("d"))
    """Of the last step, before clipping."""
    tokens_per_second: "array[float]" = field(default_factory=lambda: array("d"))
    peak_flops: "array[float]" = field(default_factory=lambda: array("d"))
    """FLOPs per second that all devices together could do."""
    spans: dict[int, list[Span]] = field(default_factory=dict)
    """By attempt, each attempt's from its launch on."""
    notes: tuple[str, ...] = ()
    """What could not be read, one sentence each."""

    def append(self, *values: float) -> None:
        """Adds a `train` line, given by its columns, in place of all lines from its step on."""
        self.cut(int(values[0]) - 1)
        self.step.append(int(values[0]))
        for column, value in zip(self._figures, values[1:], strict=True):
            column.append(value)

    def cut(self, last: int) -> None:
        """Removes the lines after step `last`."""
        if self.step and self.step[-1] > last:
            kept = bisect_right(self.step, last)
            del self.step[kept:]
            for column in self._figures:
                del column[kept:]

    def lines(self, after: int, last: int) -> Iterator[tuple[float, ...]]:
        """The lines after step `after`, up to step `last`."""
        for index in range(bisect_right(self.step, after), bisect_right(self.step, last)):
            yield (self.step[index], *(column[index] for column in self._figures))

    @property
    def _figures(self) -> tuple["array[float]", ...]:
        return self.loss, self.learning_rate, self.gradient_norm, self.tokens_per_second, self.peak_flops


def recorded(run: RunReport, part: StageReport) -> Recorded:
    """What a stage or a release of `run` recorded; without lines and spans if its files are not here."""
    for _, name, paths in RunPaths(run.directory).stages_found():
        if name == (part.branch_of or part.name):
            return read_recorded(paths.release if part.branch_of else paths)
    return Recorded()


def read_recorded(stage: StagePaths, followed: frozenset[Path] = frozenset()) -> Recorded:
    """What the stage in a directory recorded. `followed`: directories that are being read, which take over from it."""
    try:
        state = stage.metrics.stat()
    except OSError:
        return Recorded()
    return _read(stage, (state.st_size, state.st_mtime_ns), followed)


@lru_cache(maxsize=256)
def _read(stage: StagePaths, _: tuple[int, int], followed: frozenset[Path]) -> Recorded:
    found, notes = Recorded(), []
    peak = math.nan
    clocks: dict[int, _Clock] = {}
    unreadable = 0
    try:
        for record in _records(stage.metrics):
            if record is None:
                unreadable += 1
                continue
            event, step = record["event"], record["step"]
            clocks.setdefault(record["attempt"], _Clock()).add(record)
            if event == "start":
                peak = _peak(record)
                found.cut(record["resumed_from"] or 0)
            elif event == "train":
                columns = ("loss", "learning_rate", "gradient_norm", "tokens_per_second")
                figures = (math.nan if record[name] is None else record[name] for name in columns)
                found.append(step, *figures, peak)
            elif event == "reused":
                found.cut(record["resumed_from"])
                source = StagePaths(Path(record["checkpoint"]).parent)
                theirs = Recorded()
                if source.directory not in followed:
                    theirs = read_recorded(source, followed | {stage.directory})
                for line in theirs.lines(record["resumed_from"], step):
                    found.append(*line)
                if not theirs.step:
                    notes.append(f"The steps reused from {record['run']} are not drawn: its metrics.jsonl is not here.")
    except OSError as error:
        notes.append(f"{stage.metrics} cannot be read: {error.strerror or error}.")
    if unreadable:
        notes.append(f"{stage.metrics}: {counted(unreadable, 'line')} could not be read.")
    found.spans.update({attempt: clock.spans for attempt, clock in clocks.items()})
    return replace(found, notes=tuple(notes))


def _records(path: Path) -> Iterator[Record | None]:
    """The records of a file, oldest first, and None for each line that cannot be read.

    Of the `usage` lines, every second line of the file, it parses only those right before an evaluation.
    """
    usage = b""
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            if line.startswith(_USAGE):
                usage = line
                continue
            record = parse_line(line)
            if record and record["event"] == "evaluation" and usage and (before := parse_line(usage)):
                yield before
            usage = b""
            yield record


def _peak(start: Record) -> float:
    """FLOPs per second of all devices of an attempt; NaN if not known."""
    peak = peak_flops(start["peak_flops"], start["device"], start["precision"])
    return peak * start["num_devices"] if peak else math.nan


class _Clock:
    """Turns the records of one attempt into spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._seconds = 0.0
        self._last = ""
        """The event of the record before."""
        self._timed_step: int | None = None
        """The step of the last `train` line."""
        self._first_step = 0

    def add(self, record: Record) -> None:
        """Adds the time since the record before."""
        event, step, elapsed = record["event"], record["step"], record["seconds"] - self._seconds
        if event == "start":
            self._first_step = record["resumed_from"] or 0
        if event == "train":
            steps = step - (self._first_step if self._timed_step is None else self._timed_step)
            speed, tokens_per_step = record["tokens_per_second"], record["tokens_seen"] / max(1, step)
            in_steps = min(steps * tokens_per_step / speed if speed else 0.0, elapsed)
            waited = min(record["data_wait_seconds"], in_steps)
            before: Phase = "other"
            if self._timed_step is None:
                before = "start-up"
            elif self._last in _SAVING:
                before = "checkpoints"  # it removes older checkpoints after it has recorded the new one
            self._until(record["seconds"] - in_steps, before)
            self._until(record["seconds"] - in_steps + waited, "data")
            self._until(record["seconds"], "steps")
            self._timed_step = step
        elif event == "usage":  # right before an evaluation that follows loading, or the writing of final weights
            self._until(record["seconds"], "start-up" if self._timed_step is None else "checkpoints")
        elif event in ("evaluation", "trigger"):
            self._until(record["seconds"], "evaluation")
        elif event in _SAVING:
            self._until(record["seconds"], "checkpoints")
        else:
            self._until(record["seconds"], "steps" if event == "anomaly" else "start-up")
        self._last = event

    def _until(self, seconds: float, phase: Phase) -> None:
        """Ends a span."""
        if seconds <= self._seconds:
            return
        self._seconds = seconds
        if self.spans and self.spans[-1].phase == phase:
            self.spans.pop()
        self.spans.append(Span(seconds, phase))
