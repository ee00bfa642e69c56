"""How training went: its log lines as curves.

Reads metrics.jsonl. Steps that a later attempt repeated do not count; steps taken over from another run are read from
that run, if it still exists. Damaged lines and missing files leave gaps.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from growctl.report.chart import Axis, Chart, Mark, Role, Series
from growctl.report.legend import Legend
from growctl.runs.runs import RunReport, StageReport
from growctl.runs_dir import RunPaths
from growctl.text.section import Paragraph, Part, Section
from stages.counted import counted
from stages.metrics import read_events
from stages.stage_dir import StagePaths

Floats = NDArray[np.float64]


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


def _column(name: str, lines: Sequence[Line]) -> Floats:
    return np.array([getattr(line, name) for line in lines], dtype=float)


_SHARE, _LEAST, _MOST = 50, 5, 100
"""A smoothed loss is the mean of one in SHARE of a stage's lines, but of LEAST to MOST."""


def smoothed_loss(lines: Sequence[Line]) -> Floats:
    """For each line, the mean of the losses of some lines up to it; lines that are not finite do not count."""
    losses, window = _column("loss", lines), min(_MOST, max(_LEAST, len(lines) // _SHARE))
    is_finite = np.isfinite(losses)
    sums, counts = np.cumsum(np.where(is_finite, losses, 0.0)), np.cumsum(is_finite)
    sums[window:] -= sums[:-window].copy()
    counts[window:] -= counts[:-window].copy()
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


_SMOOTHED = (
    f"A smoothed loss is the mean of one in {_SHARE} of a stage's log lines, but of {_LEAST} to {_MOST}. Steps "
    "that were replayed after an interruption are drawn once. Tokens and FLOPs count from the start of the run; FLOPs "
    "include those of a start checkpoint."
)


class _Log(NamedTuple):
    """The log lines of a stage or a release."""

    run: RunReport
    part: StageReport
    lines: list[Line]

    def place(self, step: float) -> dict[str, float]:
        """The place in the run after `step` steps of it, on each of _AXES."""
        tokens = sum(part.train_tokens for part in self.run.path(self.part)[:-1])
        flops = self.part.cumulative_flops - self.part.flops
        return {"tokens": tokens + step * self.part.tokens_per_step, "flops": flops + step * self.part.step_flops}


def sections(runs: Sequence[RunReport], legend: Legend) -> Iterator[Section]:
    """The training of the ladders, and that of the controls for those who ask."""
    for key, heading, is_ladder in (("training", "Training", True), ("controls", "Training of the controls", False)):
        some = [run for run in runs if (run.control is None) == is_ladder and any(p.train_tokens for p in run.parts)]
        logs = {run.name: [_Log(run, part, logged(run, part)) for part in run.parts] for run in some}
        here = [log for log in logs.values() if any(part.lines for part in log)]
        parts: list[Part] = [*_charts(here, legend, key)]
        parts += [Paragraph(_SMOOTHED, "note")] if parts else []
        if missing := [name for name, log in logs.items() if log not in here]:
            parts.append(Paragraph(f"No log lines are here of {', '.join(missing)}.", "note"))
        if parts:
            yield Section(key, heading, tuple(parts), in_terminal=False, is_detail=not is_ladder)


_AXES = (Axis("tokens", "data tokens"), Axis("flops", "training FLOPs"))
_CHARTS: tuple[tuple[str, Axis, Callable[[Sequence[Line]], Floats]], ...] = (
    ("Loss", Axis("y", "smoothed training loss (nats per token)"), smoothed_loss),
    ("Learning rate", Axis("y", "learning rate"), partial(_column, "learning_rate")),
    (
        *("Gradient norm", Axis("y", "L2 norm of the gradient before clipping", is_log=True)),
        partial(_column, "gradient_norm"),
    ),
    ("Throughput", Axis("y", "data tokens per second of optimizer steps"), partial(_column, "tokens_per_second")),
)
"""The title of each chart, its axis, and the values of the log lines."""


def _charts(logs: Sequence[Sequence[_Log]], legend: Legend, key: str) -> Iterator[Chart]:
    """A chart for each question; none for what no run has recorded."""
    curves = [[part for part in log if not part.part.branch_of] for log in logs]
    curves += [[part] for log in logs for part in log if part.part.branch_of]
    starts = {(part.run.name, part.part.name): part.place(0) for log in logs for part in log}
    rules = legend.growths([log[0].run for log in logs], lambda run, stage: starts[run.name, stage.name])
    for title, axis, read in _CHARTS:
        series = [each for parts in curves if (each := _series(parts, legend, read)).marks]
        if series:
            ys = [mark.y for each in series for mark in each.marks]
            summary = f"{counted(len(series), 'curve')}, from {min(ys):.4g} to {max(ys):.4g} ({axis.label})."
            name = f"{key}-{title.lower().replace(' ', '-')}"
            yield Chart(name, title, summary, _AXES, axis, tuple(series), rules, legend.groups)


def _series(parts: Sequence[_Log], legend: Legend, read: Callable[[Sequence[Line]], Floats]) -> Series:
    """One figure of the log lines of some stages, or of a release."""
    marks = [
        Mark(part.place(line.step), float(y))
        for part in parts
        for line, y in zip(part.lines, read(part.lines), strict=True)
        if np.isfinite(y)
    ]
    marks[-1:] = [replace(mark, is_end=True) for mark in marks[-1:]]
    run, is_release = parts[0].run, parts[0].part.branch_of
    role: Role = "release" if is_release else "control" if run.control else "ladder"
    label = f"{legend.entry(run)}{', releases' if is_release else ''}"
    return Series(run.name, tuple(marks), role, legend.group(run), label=label)
