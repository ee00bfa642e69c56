"""How training went: its log lines as curves.

Reads metrics.jsonl. Steps that a later attempt repeated do not count; steps taken over from another run are read from
that run, if it still exists. Damaged lines and missing files leave gaps.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from growctl.report.chart import Axis, Chart, Mark, Role, Series
from growctl.report.legend import Legend
from growctl.runs.runs import RunReport, StageReport
from growctl.runs_dir import RunPaths
from growctl.text.section import Paragraph, Part, Section
from stages.counted import counted
from stages.metrics import read_events
from stages.stage_dir import StagePaths


class Line(NamedTuple):
    """A `train` line; NaN stands for what is not known."""

    step: float
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float


def logged(run: RunReport, part: StageReport) -> list[Line]:
    """The log lines of a stage or a release of `run` that count, by ascending steps; none if its files are not here."""
    for _, name, paths in RunPaths(run.directory).stages_found():
        if name == (part.branch_of or part.name):
            return read_lines(paths.release if part.branch_of else paths)
    return []


def read_lines(stage: StagePaths, followed: frozenset[Path] = frozenset()) -> list[Line]:
    """The log lines of a stage that count, by ascending steps.

    `followed`: directories that are being read, which take over from this one.
    """
    lines: list[Line] = []

    def cut(last: float) -> None:
        del lines[bisect_right(lines, last, key=lambda line: line.step) :]

    for record in read_events(stage.metrics, "start", "train", "reused"):
        step = record["step"]
        if record["event"] == "start":
            cut(record["resumed_from"] or 0)
        elif record["event"] == "train":
            cut(step - 1)
            figures = {name: math.nan if record[name] is None else record[name] for name in Line._fields[1:]}
            lines.append(Line(step=step, **figures))
        else:
            cut(record["resumed_from"])
            source = StagePaths(Path(record["checkpoint"]).parent)
            theirs = [] if source.directory in followed else read_lines(source, followed | {stage.directory})
            lines += [line for line in theirs if record["resumed_from"] < line.step <= step]
    return lines


_MOST_MARKS = 200
"""Of a stage: a mark is the mean of some log lines next to each other, at the step of the last of them."""

_MEANS = (
    f"A mark is the mean of some log lines, at most {_MOST_MARKS} in a stage. Steps that were replayed after an "
    "interruption are drawn once. Tokens count from the start of the run."
)


class _Log(NamedTuple):
    """The log lines of a stage or a release."""

    run: RunReport
    part: StageReport
    lines: list[Line]

    def place(self, step: float) -> float:
        """The data tokens of the run after `step` steps of it."""
        before = sum(part.train_tokens for part in self.run.path(self.part)[:-1])
        return before + step * self.part.tokens_per_step

    def marks(self, figure: str) -> Iterator[Mark]:
        """A figure of the log lines. Those without it do not count."""
        lines = [line for line in self.lines if math.isfinite(getattr(line, figure))]
        size, left = math.ceil(len(lines) / _MOST_MARKS), iter(lines)
        while some := list(islice(left, size)):
            yield Mark(self.place(some[-1].step), fmean(getattr(line, figure) for line in some))


def sections(runs: Sequence[RunReport], legend: Legend) -> Iterator[Section]:
    """The training of the ladders, and that of the controls for those who ask."""
    for key, heading, is_ladder in (("training", "Training", True), ("controls", "Training of the controls", False)):
        some = [run for run in runs if (run.control is None) == is_ladder and any(p.train_tokens for p in run.parts)]
        logs = {run.name: [_Log(run, part, logged(run, part)) for part in run.parts] for run in some}
        here = [log for log in logs.values() if any(part.lines for part in log)]
        parts: list[Part] = [*_charts(here, legend, key)]
        parts += [Paragraph(_MEANS, "note")] if parts else []
        if missing := [name for name, log in logs.items() if log not in here]:
            parts.append(Paragraph(f"No log lines are here of {', '.join(missing)}.", "note"))
        if parts:
            yield Section(key, heading, tuple(parts), in_terminal=False, is_detail=not is_ladder)


_TOKENS = Axis("data tokens")
_CHARTS = {
    "loss": Axis("training loss (nats)"),
    "learning_rate": Axis("learning rate"),
    "gradient_norm": Axis("L2 norm of the gradient before clipping", is_log=True),
    "tokens_per_second": Axis("data tokens per second of optimizer steps"),
}
"""The axis of each chart, by the figure of a log line."""


def _charts(logs: Sequence[Sequence[_Log]], legend: Legend, key: str) -> Iterator[Chart]:
    """A chart for each figure; none for what no run has recorded."""
    curves = [[part for part in log if not part.part.branch_of] for log in logs]
    curves += [[part] for log in logs for part in log if part.part.branch_of]
    starts = {(part.run.name, part.part.name): part.place(0) for log in logs for part in log}
    rules = legend.growths([log[0].run for log in logs], lambda run, stage: starts[run.name, stage.name])
    for figure, axis in _CHARTS.items():
        series = tuple(each for parts in curves if (each := _series(parts, legend, figure)).marks)
        if series:
            ys = [mark.y for each in series for mark in each.marks]
            title, name = figure.replace("_", " ").capitalize(), f"{key}-{figure.replace('_', '-')}"
            summary = f"{counted(len(series), 'curve')}, from {min(ys):.4g} to {max(ys):.4g} ({axis.label})."
            yield Chart(name, title, summary, _TOKENS, axis, series, rules, legend.groups)


def _series(parts: Sequence[_Log], legend: Legend, figure: str) -> Series:
    """One figure of the log lines of some stages, or of a release."""
    marks = [mark for part in parts for mark in part.marks(figure)]
    marks[-1:] = [replace(mark, is_end=True) for mark in marks[-1:]]
    run, is_release = parts[0].run, parts[0].part.branch_of
    role: Role = "release" if is_release else "control" if run.control else "ladder"
    label = f"{legend.entry(run)}{', releases' if is_release else ''}"
    return Series(run.name, tuple(marks), role, legend.group(run), label=label)
