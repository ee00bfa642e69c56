"""Where the time went: the device time of each stage by what the devices did."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import get_args

from growctl.analysis.runs import RunReport, StageReport
from growctl.report.recorded import Phase, Span, recorded
from growctl.text.formatting import duration
from growctl.text.section import Cell, Column, Paragraph, Rows, Section, Table

_NAMED: tuple[Phase, ...] = ("data", "evaluation", "checkpoints", "start-up")
"""The phases that the records of a stage tell apart, beside steps. The ledger knows none of them."""

LEAST_DATA_SHARE = 0.01
"""Waiting for data that the text names: less is that of any local dataset."""

_COLUMNS = (
    Column("stage", is_number=False),
    Column("device time"),
    Column("steps"),
    Column("data", drop=2),
    Column("evaluation"),
    Column("checkpoints"),
    Column("start-up"),
    Column("replayed"),
    Column("other", drop=1),
)

_CAPTION = (
    "Device time: wall seconds x devices, from the launch of each attempt to its last record. Waiting between attempts "
    "and in queues is not part of it. Steps: optimizer steps. Data: waiting for the next micro-batch. Checkpoints: "
    "saving them, and the final weights. Start-up: starting processes and loading. Replayed: work that a later attempt "
    "repeated, and attempts that completed no step. Other: the rest, which no record names."
)
_NOT_RECORDED = (
    "The files of the stage are not here, so that evaluation, checkpoints and start-up are part of other, and data is "
    "part of steps."
)


@dataclass(frozen=True)
class TimeSpent:
    """The device time of a stage, in device-seconds. The parts add up to `device_seconds`."""

    steps: float = 0.0
    """Optimizer steps, without replayed ones and without waiting for data."""
    data: float = 0.0
    """Waiting for the next micro-batch, as for tokens from a URL."""
    evaluation: float = 0.0
    """Evaluations on the validation split."""
    checkpoints: float = 0.0
    """Saving checkpoints and the final weights."""
    start_up: float = 0.0
    """Starting processes, and loading checkpoints."""
    replayed: float = 0.0
    """Work that a later attempt repeated, and attempts that completed no step."""
    other: float = 0.0
    """The rest."""
    recorded: bool = True
    """Whether the stage's files are here. If not, evaluation, checkpoints and start-up are part of `other`,
    and data part of `steps`."""

    @property
    def device_seconds(self) -> float:
        """All of it: what the ledger has as the device time."""
        return sum(getattr(self, name) for name in _PARTS)

    def __add__(self, other: "TimeSpent") -> "TimeSpent":
        sums = {name: getattr(self, name) + getattr(other, name) for name in _PARTS}
        return TimeSpent(**sums, recorded=self.recorded and other.recorded)


_PARTS = tuple(f.name for f in fields(TimeSpent) if f.name != "recorded")


def time_spent(run: RunReport, part: StageReport) -> TimeSpent:
    """Where the device time of a stage, or of a release, went. Steps that it reused took no time of this run."""
    spans, spent = recorded(run, part).spans, TimeSpent()
    begins: dict[int, float] = {}
    for work in part.work:
        begin = begins.get(work.attempt, 0.0)
        begins[work.attempt] = begin + work.wall_seconds
        seconds = _seconds(spans.get(work.attempt, ()), begin, begin + work.wall_seconds)
        in_steps = seconds["steps"] if work.step_seconds is None else work.step_seconds - seconds["data"]
        in_steps = max(0.0, min(work.wall_seconds, in_steps))
        left = work.wall_seconds - in_steps
        named = sum(seconds[phase] for phase in _NAMED)
        scale = min(1.0, left / named) if named else 0.0
        devices = work.device_seconds / work.wall_seconds if work.wall_seconds else 0.0
        kept = devices * work.kept
        spent += TimeSpent(
            steps=in_steps * kept,
            data=seconds["data"] * scale * kept,
            evaluation=seconds["evaluation"] * scale * kept,
            checkpoints=seconds["checkpoints"] * scale * kept,
            start_up=seconds["start-up"] * scale * kept,
            replayed=work.device_seconds * (1 - work.kept),
            other=(left - named * scale) * kept,
        )
    return replace(spent, recorded=bool(spans) or not part.work)


def _seconds(spans: Sequence[Span], begin: float, end: float) -> dict[Phase, float]:
    """Wall seconds by phase of an attempt, between two moments of it."""
    found = dict.fromkeys(get_args(Phase), 0.0)
    before = begin
    for place in range(bisect_right(spans, begin, key=lambda span: span.until), len(spans)):
        span = spans[place]
        found[span.phase] += max(0.0, min(span.until, end) - before)
        before = span.until
        if before >= end:
            break
    return found


def section(runs: Sequence[RunReport]) -> Section | None:
    """Where the time of each run went; None if no run has spent any."""
    groups, total = [], TimeSpent()
    for run in runs:
        parts = [(part, time_spent(run, part)) for part in run.parts if part.work]
        if not parts:
            continue
        whole = sum((spent for _, spent in parts), TimeSpent())
        rows = [_row(part.name, spent) for part, spent in parts]
        rows += [_row("all", whole)] if len(parts) > 1 else []
        groups.append(Rows(tuple(rows), run.name, run.description))
        total += whole
    if not total.device_seconds:
        return None
    said = (
        f"Of {duration(total.device_seconds)} of device time, {total.steps / total.device_seconds:.0%} went into steps"
    )
    if total.data >= LEAST_DATA_SHARE * total.device_seconds:
        said += f", {total.data / total.device_seconds:.1%} into waiting for data"
    if total.replayed:
        said += f", and {total.replayed / total.device_seconds:.1%} into work that was replayed after interruptions"
    table = Table("time", _COLUMNS, tuple(groups), _CAPTION)
    return Section("time", "Where the time went", (Paragraph(f"{said}."), table), in_terminal=False, is_detail=True)


def _row(name: str, spent: TimeSpent) -> tuple[Cell, ...]:
    cells = (_cell(spent, part) for part in _PARTS)
    return Cell(name), Cell(duration(spent.device_seconds), spent.device_seconds), *cells


def _cell(spent: TimeSpent, part: str) -> Cell:
    seconds = getattr(spent, part)
    if not seconds:
        return Cell("-", seconds, "" if spent.recorded else _NOT_RECORDED)
    return Cell(duration(seconds), seconds)
