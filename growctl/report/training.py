"""How training went: its log lines as curves, and the figures of each stage.

Reads metrics.jsonl. Steps that a later attempt repeated do not count; steps taken over from another run are read from
that run, if it still exists. Damaged and missing files leave gaps, and a note for the reader.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from growctl.report.chart import Axis, Chart, Mark, Role, Series, share_of_marks, thinned
from growctl.report.legend import Legend
from growctl.runs.runs import RunReport, StageReport
from growctl.runs_dir import RunPaths
from growctl.schedule.known_devices import peak_flops
from growctl.text.section import Cell, Column, Paragraph, Part, Rows, Section, Table, figure
from stages.counted import counted
from stages.metrics import parse_line
from stages.stage_dir import StagePaths

_SKIPPED = tuple(b'{"event": "%s",' % event for event in (b"usage", b"evaluation", b"checkpoint", b"saved"))
_SHARE, _LEAST, _MOST = 50, 5, 100
"""A smoothed loss is the mean of one in SHARE of a stage's lines, but of LEAST to MOST."""

Floats = NDArray[np.float64]


class Line(NamedTuple):
    """A `train` line; NaN stands for what is not known."""

    step: float
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    peak_flops: float
    """FLOPs per second that all devices together could do."""


@dataclass(frozen=True)
class Recorded:
    """What a stage recorded."""

    lines: tuple[Line, ...] = ()
    """Those that count, by ascending steps of the stage."""
    notes: tuple[str, ...] = ()
    """What could not be read, one sentence each."""

    def column(self, name: str) -> Floats:
        """One figure of all lines."""
        return np.array([getattr(line, name) for line in self.lines], dtype=float)

    def smoothed_loss(self) -> Floats:
        """For each line, the mean of the losses of `window` lines up to it; lines that are not finite do not count."""
        losses = self.column("loss")
        is_finite = np.isfinite(losses)
        sums, counts = np.cumsum(np.where(is_finite, losses, 0.0)), np.cumsum(is_finite)
        sums[self.window :] -= sums[: -self.window].copy()
        counts[self.window :] -= counts[: -self.window].copy()
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    @property
    def window(self) -> int:
        """The number of lines that a smoothed loss covers."""
        return min(_MOST, max(_LEAST, len(self.lines) // _SHARE))


def recorded(run: RunReport, part: StageReport) -> Recorded:
    """What a stage or a release of `run` recorded; without lines if its files are not here."""
    for _, name, paths in RunPaths(run.directory).stages_found():
        if name == (part.branch_of or part.name):
            return read_recorded(paths.release if part.branch_of else paths)
    return Recorded()


def read_recorded(stage: StagePaths, followed: frozenset[Path] = frozenset()) -> Recorded:
    """What a stage recorded. `followed`: directories that are being read, which take over from this one."""
    lines: list[Line] = []
    notes: list[str] = []
    peak, unreadable = math.nan, 0

    def cut(last: float) -> None:
        del lines[bisect_right(lines, last, key=lambda line: line.step) :]

    try:
        texts = [line for line in stage.metrics.read_bytes().splitlines(True) if line.endswith(b"\n")]
    except FileNotFoundError:
        return Recorded()
    except OSError as error:
        return Recorded(notes=(f"{stage.metrics} cannot be read: {error.strerror or error}.",))
    for text in texts:
        if text.startswith(_SKIPPED):  # most of the file
            continue
        if (record := parse_line(text)) is None:
            unreadable += 1
            continue
        event, step = record["event"], record["step"]
        if event == "start":
            alone = peak_flops(record["peak_flops"], record["device"], record["precision"])
            peak = alone * record["num_devices"] if alone else math.nan
            cut(record["resumed_from"] or 0)
        elif event == "train":
            cut(step - 1)
            figures = {name: math.nan if record[name] is None else record[name] for name in Line._fields[1:-1]}
            lines.append(Line(step=step, **figures, peak_flops=peak))
        elif event == "reused":
            cut(record["resumed_from"])
            source = StagePaths(Path(record["checkpoint"]).parent)
            is_loop = source.directory in followed
            theirs = Recorded() if is_loop else read_recorded(source, followed | {stage.directory})
            lines += [line for line in theirs.lines if record["resumed_from"] < line.step <= step]
            if not theirs.lines:
                notes.append(f"The steps reused from {record['run']} are not drawn: its metrics.jsonl is not here.")
    if unreadable:
        notes.append(f"{stage.metrics}: {counted(unreadable, 'line')} could not be read.")
    return Recorded(tuple(lines), tuple(notes))


@dataclass(frozen=True)
class StageTraining:
    """How a stage, or its release, trained: what its log lines say, without replayed steps. None is not known."""

    stage: str
    num_lines: int
    """Log lines that count."""
    final_training_loss: float | None
    """Nats per token: the mean of the last log lines, `window_steps` in all."""
    window_steps: int | None
    """Optimizer steps that this mean covers."""
    peak_learning_rate: float | None
    last_learning_rate: float | None
    median_gradient_norm: float | None
    """L2 norm before clipping, of the steps at which lines were logged."""
    largest_gradient_norm: float | None
    median_tokens_per_second: float | None
    """Data tokens per wall second of optimizer steps, over all devices."""
    median_mfu: float | None
    """Share of the devices' peak speed; None without a known peak."""
    notes: tuple[str, ...]
    """What could not be read, one sentence each."""


def stages_trained(run: RunReport) -> tuple[StageTraining, ...]:
    """How each stage of a run trained; a stage's release follows it."""
    return tuple(_trained(part, recorded(run, part)) for part in run.parts)


def _trained(part: StageReport, log: Recorded) -> StageTraining:
    losses, rates, norms, speeds = (log.column(name) for name in Line._fields[1:-1])
    mfu = speeds * part.step_flops / max(1, part.tokens_per_step) / log.column("peak_flops")
    losses = log.smoothed_loss()[-1:]
    before = log.lines[-log.window - 1].step if len(log.lines) > log.window else 0
    return StageTraining(
        stage=part.name,
        num_lines=len(log.lines),
        final_training_loss=_of_finite(np.max, losses),
        window_steps=int(log.lines[-1].step - before) if log.lines else None,
        peak_learning_rate=_of_finite(np.max, rates),
        last_learning_rate=_of_finite(np.max, rates[-1:]),
        median_gradient_norm=_of_finite(np.median, norms),
        largest_gradient_norm=_of_finite(np.max, norms),
        median_tokens_per_second=_of_finite(np.median, speeds),
        median_mfu=_of_finite(np.median, mfu),
        notes=log.notes,
    )


def _of_finite(summary: Callable[[Floats], float], values: Floats) -> float | None:
    finite = values[np.isfinite(values)]
    return float(summary(finite)) if len(finite) else None


_COLUMNS = (
    Column("stage", is_number=False),
    Column("training loss at the end"),
    Column("peak learning rate"),
    Column("median gradient norm", drop=3),
    Column("largest gradient norm", drop=1),
    Column("median tokens per second"),
    Column("median MFU", drop=2),
)
_SMOOTHED = (
    f"Training losses are those of the log lines, each the mean over the steps since the line before; smoothed, the "
    f"mean of one in {_SHARE} of a stage's lines, but of {_LEAST} to {_MOST}. Long curves are thinned: both ends and "
    "the extremes of each stretch are drawn. Steps that were replayed after an interruption are drawn once. Tokens and "
    "FLOPs count from the start of the run; FLOPs include those of a start checkpoint."
)


@dataclass(frozen=True)
class _Drawn:
    """The log lines of a stage or a release, with its place in the run."""

    run: RunReport
    part: StageReport
    log: Recorded

    def place(self, step: float) -> dict[str, float]:
        """The place after `step` steps of it, on each of _AXES."""
        tokens = sum(part.train_tokens for part in self.run.path(self.part)[:-1])
        flops = self.part.cumulative_flops - self.part.flops
        return {"tokens": tokens + step * self.part.tokens_per_step, "flops": flops + step * self.part.step_flops}


def sections(runs: Sequence[RunReport], legend: Legend) -> Iterator[Section]:
    """The training of the ladders, and that of the controls for those who ask."""
    drawn = {run.name: [_Drawn(run, part, recorded(run, part)) for part in run.parts] for run in runs}
    for key, heading, is_ladder in (("training", "Training", True), ("controls", "Training of the controls", False)):
        some = [run for run in runs if (run.control is None) == is_ladder and any(p.train_tokens for p in run.parts)]
        logged = [run for run in some if any(stage.log.lines for stage in drawn[run.name])]
        parts: list[Part] = [*_charts([drawn[run.name] for run in logged], legend, key)]
        if logged:
            rows = [
                Rows(tuple(_row(_trained(each.part, each.log)) for each in drawn[run.name]), run.name, run.description)
                for run in logged
            ]
            parts.append(Table(key, _COLUMNS, tuple(rows), _SMOOTHED))
        if missing := [run.name for run in some if run not in logged]:
            parts.append(Paragraph(f"No log lines are here of {', '.join(missing)}.", "note"))
        notes = (note for run in some for stage in drawn[run.name] for note in stage.log.notes)
        parts += [Paragraph(note, "note") for note in dict.fromkeys(notes)]
        if parts:
            yield Section(key, heading, tuple(parts), in_terminal=False, is_detail=not is_ladder)


def _row(stage: StageTraining) -> tuple[Cell, ...]:
    return (
        Cell(stage.stage),
        figure(stage.final_training_loss),
        figure(stage.peak_learning_rate, "{:.3g}"),
        figure(stage.median_gradient_norm, "{:.3g}"),
        figure(stage.largest_gradient_norm, "{:.3g}"),
        figure(stage.median_tokens_per_second, "{:,.0f}"),
        figure(stage.median_mfu, "{:.1%}", "The peak speed of the device is not known."),
    )


_AXES = (Axis("tokens", "data tokens"), Axis("flops", "training FLOPs"))
_CHARTS: dict[str, tuple[str, Axis, str, Callable[[Recorded], Floats]]] = {
    "loss": (
        *("Loss", Axis("y", "smoothed training loss (nats per token); dots: validation"), "{:.4f}"),
        Recorded.smoothed_loss,
    ),
    "learning-rate": ("Learning rate", Axis("y", "learning rate"), "{:.4g}", lambda log: log.column("learning_rate")),
    "gradient-norm": (
        *("Gradient norm", Axis("y", "L2 norm of the gradient before clipping", is_log=True), "{:.4g}"),
        lambda log: log.column("gradient_norm"),
    ),
    "throughput": (
        *("Throughput", Axis("y", "data tokens per second of optimizer steps"), "{:,.0f}"),
        lambda log: log.column("tokens_per_second"),
    ),
}
"""The charts by key: title, axis, how a value is shown, and the values of the log lines."""


def _charts(runs: Sequence[Sequence[_Drawn]], legend: Legend, key: str) -> Iterator[Chart]:
    """A chart for each question; none for what no run has recorded."""
    curves = [[each for each in stages if not each.part.branch_of] for stages in runs]
    curves += [[each] for stages in runs for each in stages if each.part.branch_of]
    first = {(each.run.name, each.part.name): each.place(0) for stages in runs for each in stages}
    rules = legend.growths([stages[0].run for stages in runs], lambda run, stage: first[run.name, stage.name])
    for what, (title, axis, shown, read) in _CHARTS.items():
        series = [_series(parts, legend, read, share_of_marks(len(curves)), shown) for parts in curves]
        series = [each for each in series if each.marks]
        if series:
            series += _validation(runs, legend) if what == "loss" else ()
            ys = [mark.y for each in series for mark in each.marks]
            summary = f"{title}: {counted(len(series), 'curve')}, from {min(ys):.4g} to {max(ys):.4g} ({axis.label})."
            yield Chart(f"{key}-{what}", title, summary, _AXES, axis, tuple(series), rules, legend.groups)


def _series(
    parts: Sequence[_Drawn], legend: Legend, read: Callable[[Recorded], Floats], most: int, shown: str
) -> Series:
    """One figure of the log lines of some stages, or of a release, thinned to `most` marks."""
    ys = np.concatenate([read(part.log) for part in parts])
    owners = [(part, line.step) for part in parts for line in part.log.lines]
    places = thinned(ys, most)

    def mark(place: int) -> Mark:
        part, step = owners[place]
        facts = (("value", shown.format(ys[place])), ("step", f"{step:,.0f} of {part.part.name}"))
        return Mark(part.place(step), float(ys[place]), facts, is_end=place == places[-1])

    run, is_release = parts[0].run, parts[0].part.branch_of
    role: Role = "release" if is_release else "control" if run.control else "ladder"
    label = f"{legend.entry(run)}{', releases' if is_release else ''}"
    return Series(run.name, tuple(map(mark, places)), role, legend.group(run), label=label)


def _validation(runs: Sequence[Sequence[_Drawn]], legend: Legend) -> Iterator[Series]:
    """The validation losses of each run, as dots."""
    for stages in runs:
        run, by_name = stages[0].run, {each.part.name: each for each in stages}
        points = [point for point in run.points if point.stage in by_name]
        chosen = [points[place] for place in thinned([point.loss for point in points], share_of_marks(2 * len(runs)))]
        marks = tuple(
            Mark(by_name[point.stage].place(point.step), point.loss, (("loss", f"{point.loss:.4f}"),))
            for point in chosen
        )
        label = f"{legend.entry(run)}, validation"
        yield Series(f"{run.name}, validation", marks, "plain", legend.group(run), is_joined=False, label=label)
