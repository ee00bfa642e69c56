"""How training went: its log lines as curves, and the figures of each stage.

Reads metrics.jsonl. Steps that a later attempt repeated do not count; steps taken over from another run are read from
that run, if it still exists. Damaged and missing files leave gaps, and a note for the reader.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from growctl.report.chart import Axis, Chart, Mark, Role, Rule, Series, share_of_marks, thinned
from growctl.report.legend import Legend
from growctl.runs.runs import RunReport, StageReport
from growctl.runs_dir import RunPaths
from growctl.schedule.known_devices import peak_flops
from growctl.text.formatting import short_count
from growctl.text.section import Cell, Column, Paragraph, Part, Rows, Section, Table, figure
from stages.counted import counted
from stages.metrics import Record, parse_line
from stages.stage_dir import StagePaths

_SKIPPED = tuple(b'{"event": "%s",' % event for event in (b"usage", b"evaluation", b"checkpoint", b"saved"))
_SHARE, _LEAST, _MOST = 50, 5, 100
"""A smoothed loss is the mean of one in SHARE of a stage's lines, but of LEAST to MOST."""
AXES = (Axis("tokens", "data tokens"), Axis("flops", "training FLOPs"))


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

    def column(self, name: str) -> NDArray[np.float64]:
        """One figure of all lines."""
        return np.array([getattr(line, name) for line in self.lines], dtype=float)

    def smoothed_loss(self) -> NDArray[np.float64]:
        """For each line, the mean of the losses of `window` lines up to it; lines that are not finite do not count."""
        losses = self.column("loss")
        known = np.isfinite(losses)
        sums, counts = np.cumsum(np.where(known, losses, 0.0)), np.cumsum(known)
        sums[self.window :] -= sums[: -self.window].copy()
        counts[self.window :] -= counts[: -self.window].copy()
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    @property
    def window(self) -> int:
        """The number of lines that a smoothed loss covers."""
        return min(_MOST, max(_LEAST, len(self.lines) // _SHARE))


def recorded(run: RunReport, part: StageReport) -> Recorded:
    """What a stage or a release of `run` recorded; without lines and spans if its files are not here."""
    for _, name, paths in RunPaths(run.directory).stages_found():
        if name == (part.branch_of or part.name):
            return _recorded(paths.release if part.branch_of else paths, frozenset())
    return Recorded()


def _recorded(stage: StagePaths, followed: frozenset[Path]) -> Recorded:
    """`followed`: directories that are being read, which take over from this one."""
    try:
        return _read(stage, followed)
    except OSError as error:
        exists = stage.metrics.exists()
        return Recorded(notes=(f"{stage.metrics} cannot be read: {error.strerror or error}.",) if exists else ())


def _read(stage: StagePaths, followed: frozenset[Path]) -> Recorded:
    lines: list[Line] = []
    notes: list[str] = []
    peak, unreadable = math.nan, 0

    def cut(last: float) -> None:
        del lines[bisect_right(lines, last, key=lambda line: line.step) :]

    for record in _records(stage.metrics):
        if record is None:
            unreadable += 1
            continue
        event, step = record["event"], record["step"]
        if event == "start":
            known = peak_flops(record["peak_flops"], record["device"], record["precision"])
            peak = known * record["num_devices"] if known else math.nan
            cut(record["resumed_from"] or 0)
        elif event == "train":
            cut(step - 1)
            figures = {name: math.nan if record[name] is None else record[name] for name in Line._fields[1:-1]}
            lines.append(Line(step=step, **figures, peak_flops=peak))
        elif event == "reused":
            cut(record["resumed_from"])
            source = StagePaths(Path(record["checkpoint"]).parent)
            is_loop = source.directory in followed
            theirs = Recorded() if is_loop else _recorded(source, followed | {stage.directory})
            lines += [line for line in theirs.lines if record["resumed_from"] < line.step <= step]
            if not theirs.lines:
                notes.append(f"The steps reused from {record['run']} are not drawn: its metrics.jsonl is not here.")
    if unreadable:
        notes.append(f"{stage.metrics}: {counted(unreadable, 'line')} could not be read.")
    return Recorded(tuple(lines), tuple(notes))


def _records(path: Path) -> Iterator[Record | None]:
    """The records of a file, oldest first, and None for each line that cannot be read.

    Skips lines of events that say nothing here: most of the file.
    """
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n") and not line.startswith(_SKIPPED):
                yield parse_line(line)


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


def _trained(part: StageReport, found: Recorded) -> StageTraining:
    rates = found.column("learning_rate")
    norms, speeds = (_finite(found.column(name)) for name in ("gradient_norm", "tokens_per_second"))
    flops_per_token = part.step_flops / max(1, part.tokens_per_step)
    mfu = _finite(found.column("tokens_per_second") * flops_per_token / found.column("peak_flops"))
    smoothed = found.smoothed_loss()
    before = found.lines[-found.window - 1].step if len(found.lines) > found.window else 0
    return StageTraining(
        stage=part.name,
        num_lines=len(found.lines),
        final_training_loss=float(smoothed[-1]) if len(smoothed) and np.isfinite(smoothed[-1]) else None,
        window_steps=int(found.lines[-1].step - before) if found.lines else None,
        peak_learning_rate=float(rates.max()) if len(rates) else None,
        last_learning_rate=float(rates[-1]) if len(rates) else None,
        median_gradient_norm=float(np.median(norms)) if len(norms) else None,
        largest_gradient_norm=float(norms.max()) if len(norms) else None,
        median_tokens_per_second=float(np.median(speeds)) if len(speeds) else None,
        median_mfu=float(np.median(mfu)) if len(mfu) else None,
        notes=found.notes,
    )


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]


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


def sections(runs: Sequence[RunReport], legend: Legend) -> Iterator[Section]:
    """The training of the ladders, and that of the controls for those who ask."""
    drawn = {run.name: tuple(_drawn(run)) for run in runs}
    trained = {name: [_trained(each.part, each.recorded) for each in parts] for name, parts in drawn.items()}
    for key, heading, is_ladder in (("training", "Training", True), ("controls", "Training of the controls", False)):
        some = [run for run in runs if (run.control is None) == is_ladder and any(p.train_tokens for p in run.parts)]
        logged = [run for run in some if any(stage.num_lines for stage in trained[run.name])]
        parts: list[Part] = [*_charts(logged, drawn, legend, key)]
        if logged:
            rows = [Rows(tuple(map(_row, trained[run.name])), run.name, run.description) for run in logged]
            parts.append(Table(key, _COLUMNS, tuple(rows), _SMOOTHED))
        if missing := [run.name for run in some if run not in logged]:
            parts.append(Paragraph(f"No log lines are here of {', '.join(missing)}.", "note"))
        notes = (note for run in some for stage in trained[run.name] for note in stage.notes)
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


@dataclass(frozen=True)
class _Drawn:
    """The log lines of a stage or a release, with its place in the run."""

    part: StageReport
    recorded: Recorded
    first_tokens: int
    first_flops: float

    def place(self, step: float) -> dict[str, float]:
        """The place after `step` steps of it, on each of AXES."""
        return {
            "tokens": self.first_tokens + step * self.part.tokens_per_step,
            "flops": self.first_flops + step * self.part.step_flops,
        }


def _drawn(run: RunReport) -> Iterator[_Drawn]:
    tokens = 0
    for part in run.parts:
        yield _Drawn(part, recorded(run, part), tokens, part.cumulative_flops - part.flops)
        tokens += 0 if part.branch_of else part.train_tokens


def _charts(
    runs: Sequence[RunReport], drawn: Mapping[str, Sequence[_Drawn]], legend: Legend, key: str
) -> Iterator[Chart]:
    """A chart for each question; none for what no run has recorded."""
    rules: dict[tuple[str, float], Rule] = {}
    for run in runs:
        for stage in drawn[run.name]:
            if stage.part.loss_after_growth is not None:
                label = f"grown to {short_count(stage.part.num_parameters)}"
                rules.setdefault((label, stage.first_tokens), Rule(stage.place(0), label, legend.group(run)))

    def lines(values: Callable[[_Drawn], NDArray[np.float64]], shown: str) -> list[Series]:
        wanted = [(run, [each for each in drawn[run.name] if not each.part.branch_of], "") for run in runs]
        wanted += [(run, [each], ", releases") for run in runs for each in drawn[run.name] if each.part.branch_of]
        found: dict[tuple[str, tuple[float, ...]], Series] = {}
        for run, parts, what in wanted:
            marks = _curve(parts, values, share_of_marks(len(wanted)), shown)
            role: Role = "release" if what else "control" if run.control else "ladder"
            entry, alike = f"{legend.entry(run)}{what}", tuple(mark.y for mark in marks)  # seeds share a learning rate
            found.setdefault((entry, alike), Series(run.name, marks, role, legend.group(run), label=entry))
        return [series for series in found.values() if series.marks]

    nats = "loss (nats per token)"
    smoothed = lines(lambda part: part.recorded.smoothed_loss(), "{:.4f}")
    for what, title, axis, series in (
        ("loss", "Loss", Axis("y", f"smoothed training {nats}; dots: validation"),
         [*smoothed, *_validation(runs, drawn, legend)] if smoothed else []),
        ("learning-rate", "Learning rate", Axis("y", "learning rate"),
         lines(lambda part: part.recorded.column("learning_rate"), "{:.4g}")),
        ("gradient-norm", "Gradient norm", Axis("y", "L2 norm of the gradient before clipping", is_log=True),
         lines(lambda part: part.recorded.column("gradient_norm"), "{:.4g}")),
        ("throughput", "Throughput", Axis("y", "data tokens per second of optimizer steps"),
         lines(lambda part: part.recorded.column("tokens_per_second"), "{:,.0f}")),
    ):  # fmt: skip
        if series:
            ys = [mark.y for each in series for mark in each.marks]
            summary = f"{title}: {counted(len(series), 'curve')}, from {min(ys):.4g} to {max(ys):.4g} ({axis.label})."
            chart_rules = tuple(rules.values())
            yield Chart(f"{key}-{what}", title, summary, AXES, axis, tuple(series), chart_rules, groups=legend.groups)


def _curve(
    parts: Sequence[_Drawn], values: Callable[[_Drawn], NDArray[np.float64]], most: int, shown: str
) -> tuple[Mark, ...]:
    """One figure of the log lines of some stages as marks, thinned to `most`."""
    ys = np.concatenate([np.empty(0), *(values(part) for part in parts)])
    owners = [(part, line.step) for part in parts for line in part.recorded.lines]
    places = thinned(ys, most)

    def mark(place: int) -> Mark:
        part, step = owners[place]
        facts = (("value", shown.format(ys[place])), ("step", f"{step:,.0f} of {part.part.name}"))
        return Mark(part.place(step), float(ys[place]), facts, is_end=place == places[-1])

    return tuple(map(mark, places))


def _validation(runs: Sequence[RunReport], drawn: Mapping[str, Sequence[_Drawn]], legend: Legend) -> Iterator[Series]:
    """The validation losses of each run, as dots."""
    for run in runs:
        by_name = {part.part.name: part for part in drawn[run.name]}
        points = [point for point in run.points if point.stage in by_name]
        kept = [points[place] for place in thinned([point.loss for point in points], share_of_marks(2 * len(runs)))]
        marks = tuple(
            Mark(by_name[point.stage].place(point.step), point.loss, (("loss", f"{point.loss:.4f}"),)) for point in kept
        )
        label = f"{legend.entry(run)}, validation"
        yield Series(f"{run.name}, validation", marks, "plain", legend.group(run), is_joined=False, label=label)
