"""The training itself, in figures and charts: losses, learning rate, gradient norm, growth ramp and speed."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from growctl.analysis.runs import RunReport, StageReport
from growctl.report.recorded import recorded
from growctl.report.smoothing import LEAST, MOST, SHARE, mean_of_last, window_of
from growctl.report_training.curves import RunLines, mfu_of, run_lines
from growctl.report_training.training_charts import control_charts, ladder_charts
from growctl.seeds.grouping import BY_SCHEDULE, Grouping
from growctl.seeds.legend import Legend
from growctl.text.section import Cell, Column, Paragraph, Part, Rows, Section, Table


@dataclass(frozen=True)
class TrainingFigures:
    """What the log lines of a stage say, without replayed steps. None is not known."""

    final_training_loss: float | None
    """Nats per token: the mean of the last log lines, `window_steps` in all."""
    window_steps: int
    """Optimizer steps that this mean covers."""
    peak_learning_rate: float
    last_learning_rate: float
    median_gradient_norm: float | None
    """L2 norm before clipping, of the steps at which lines were logged."""
    largest_gradient_norm: float | None
    median_tokens_per_second: float | None
    """Data tokens per wall second of optimizer steps, over all devices."""
    median_mfu: float | None
    """Share of the devices' peak speed; None without a known peak."""
    num_lines: int
    """Log lines that count."""


def training_figures(run: RunReport, part: StageReport) -> TrainingFigures | None:
    """What a stage or a release recorded of its training; None if it has no log lines."""
    lines = recorded(run, part)
    if not lines.step:
        return None
    window = min(window_of(len(lines.step)), len(lines.step))
    before = lines.step[-window - 1] if window < len(lines.step) else 0
    return TrainingFigures(
        final_training_loss=mean_of_last(lines.loss, window),
        window_steps=lines.step[-1] - before,
        peak_learning_rate=max(lines.learning_rate),
        last_learning_rate=lines.learning_rate[-1],
        median_gradient_norm=_median(lines.gradient_norm),
        largest_gradient_norm=max(filter(math.isfinite, lines.gradient_norm), default=None),
        median_tokens_per_second=_median(lines.tokens_per_second),
        median_mfu=_median(mfu_of(part, lines)),
        num_lines=len(lines.step),
    )


def _median(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.median(finite) if finite else None


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
    f"Training losses are those of the log lines, each the mean over the steps since the line before. The smoothed "
    f"loss is the mean of one in {SHARE} of a stage's lines, but of {LEAST} to {MOST}: the line and those before it in "
    "the same stage. Long curves are thinned: both ends and the extremes of each stretch are drawn. Steps that were "
    "replayed after an interruption are drawn once, as they counted. Tokens and FLOPs count from the start of the run; "
    "FLOPs include those of a start checkpoint."
)


_NOT_MEASURED = (
    "Training does not measure the loss by position or by source. `growctl eval RUN --text FILE --contexts 1024` "
    "measures it by position, and `growctl eval RUN --text FILE` on the text of one source at a time; the next report "
    "shows both."
)


def sections(runs: Sequence[RunReport], grouping: Grouping = BY_SCHEDULE) -> Iterator[Section]:
    """The training of the ladders, and of the controls for those who ask; none of what has not trained."""
    if not any(part.train_tokens for run in runs for part in run.parts):
        return
    legend = Legend.of(runs, grouping)
    found = [run_lines(run, legend) for run in runs]
    ladders, controls = (
        [lines for lines in found if lines.is_recorded and (lines.run.control is None) == is_ladder]
        for is_ladder in (True, False)
    )
    parts: list[Part] = []
    if ladders:
        parts += [*ladder_charts(ladders, legend.groups), _table("training", ladders)]
    if missing := [lines.run.name for lines in found if not lines.is_recorded]:
        parts.append(Paragraph(f"No log lines are here of {', '.join(missing)}.", "note"))
    notes = (note for lines in found for stage in (*lines.stages, *lines.releases) for note in stage.recorded.notes)
    parts += [Paragraph(note, "note") for note in dict.fromkeys(notes)]
    parts += [Paragraph(_SMOOTHED, "note"), Paragraph(_NOT_MEASURED, "note")]
    yield Section("training", "Training", tuple(parts), in_terminal=False)
    if controls:
        parts = [*control_charts(controls, legend.groups), _table("training-of-controls", controls)]
        heading = "Training of the controls"
        yield Section("training-of-controls", heading, tuple(parts), in_terminal=False, is_detail=True)


def _table(key: str, drawn: Sequence[RunLines]) -> Table:
    return Table(
        key, _COLUMNS, tuple(Rows(tuple(_rows(lines.run)), lines.run.name, lines.run.description) for lines in drawn)
    )


def _rows(run: RunReport) -> Iterator[tuple[Cell, ...]]:
    for part in run.parts:
        if figures := training_figures(run, part):
            yield (
                Cell(part.name),
                _cell(figures.final_training_loss, "{:.4f}"),
                _cell(figures.peak_learning_rate, "{:.3g}"),
                _cell(figures.median_gradient_norm, "{:.3g}"),
                _cell(figures.largest_gradient_norm, "{:.3g}"),
                _cell(figures.median_tokens_per_second, "{:,.0f}"),
                _cell(figures.median_mfu, "{:.1%}", "The peak speed of the device is not known."),
            )


def _cell(value: float | None, form: str, why: str = "") -> Cell:
    return Cell("-", why=why) if value is None else Cell(form.format(value), value)
