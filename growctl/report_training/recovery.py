"""How long each growth takes to pay off: the loss right after it, and when the old loss is reached again."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from growctl.analysis.runs import RunReport, StageReport
from growctl.report.chart import Axis, Chart, Mark, Role, Series, share_of_marks, thinned
from growctl.report.recorded import Recorded, recorded
from growctl.report.smoothing import mean_of_last, smoothed, window_of
from growctl.seeds.grouping import BY_SCHEDULE, Grouping
from growctl.seeds.legend import Legend
from growctl.text.formatting import scientific, short_count
from growctl.text.section import Cell, Column, Paragraph, Rows, Section, Table

TOLERANCE = 1e-3
"""Nats per token by which a loss may exceed another and still count as equal: rounding alone moves a loss by more."""

State = Literal["at once", "regained", "not yet"]


@dataclass(frozen=True)
class Regained:
    """When a stage reached the loss from before its growth again."""

    state: State
    """`at once`: no measurement was above it. `regained`: after it had been above. `not yet`: never so far."""
    tokens: int | None
    """Data tokens of the stage up to the first measurement that had it again: 0 for `at once`, None for `not yet`."""
    flops: float | None
    """Training FLOPs of these tokens."""


@dataclass(frozen=True)
class Recovery:
    """The loss around one growth, in nats per token."""

    stage: str
    """The stage that begins with the growth."""
    before: float
    """Validation loss at the end of the stage before, or of the start checkpoint."""
    after: float
    """Validation loss at step 0, before any update."""
    highest: float
    """The highest validation loss from there on, until the old one was reached again."""
    regained: Regained
    """By validation losses."""
    training_before: float | None
    """Mean of the last log lines of the stage before; None, as `training_regained`, if they are not recorded."""
    training_regained: Regained | None
    """By training losses, smoothed over `window_tokens`. Never `at once`: it is known only after the first window."""
    window_tokens: int | None
    """Data tokens that the smoothed training loss is a mean over."""


def recoveries(run: RunReport) -> list[Recovery]:
    """The growths of a run's stages, in order. Without growths whose loss before or after is not known."""
    return [growth.recovery for growth in _growths(run)]


@dataclass(frozen=True)
class _Growth:
    """A growth with what was measured after it."""

    stage: StageReport
    recovery: Recovery
    evaluations: tuple[tuple[int, float], ...]
    """(step, loss)."""
    training: tuple[tuple[int, float], ...]
    """(step, smoothed training loss): full windows of the stage alone."""


def _growths(run: RunReport) -> Iterator[_Growth]:
    lines: Recorded | None = None
    contexts = [None, *(stage.sequence_length for stage in run.stages)]
    for stage, context_before in zip(run.stages, contexts, strict=False):
        before, after = stage.loss_before_growth, stage.loss_after_growth
        lines_before, lines = lines, recorded(run, stage)
        if before is None or after is None or not math.isfinite(before) or not math.isfinite(after):
            continue
        later = ((point.step, point.loss) for point in run.points if point.stage == stage.name and point.step)
        evaluations = ((0, after), *later)
        highest, regained = regain(before, evaluations, stage)
        window = window_of(len(lines.step))
        compares = context_before == stage.sequence_length
        old = mean_of_last(lines_before.loss, window) if lines_before and compares else None
        means = tuple(zip(lines.step, smoothed(lines.loss, window), strict=True))[window - 1 :]
        training = tuple((step, loss) for step, loss in means if math.isfinite(loss))
        known = old is not None and bool(training)
        recovery = Recovery(
            stage=stage.name,
            before=before,
            after=after,
            highest=highest,
            regained=regained,
            training_before=old if known else None,
            training_regained=first_regained(old, training, stage) if known and old is not None else None,
            window_tokens=training[0][0] * stage.tokens_per_step if known else None,
        )
        yield _Growth(stage, recovery, evaluations, training)


def regain(before: float, measured: Sequence[tuple[int, float]], stage: StageReport) -> tuple[float, Regained]:
    """The highest loss until `before` is reached again, and when that is.

    `measured`: steps and losses from step 0 of the stage on, ascending. At least one.
    """
    limit = before + TOLERANCE
    above = next((place for place, (_, loss) in enumerate(measured) if loss > limit), None)
    if above is None:
        return max(loss for _, loss in measured), Regained("at once", 0, 0.0)
    back = next((place for place in range(above, len(measured)) if measured[place][1] <= limit), None)
    highest = max(loss for _, loss in measured[:back])
    return highest, first_regained(before, measured[above:], stage)


def first_regained(before: float, measured: Sequence[tuple[int, float]], stage: StageReport) -> Regained:
    """The first of `measured` that is as low as `before`."""
    step = next((step for step, loss in measured if loss <= before + TOLERANCE), None)
    if step is None:
        return Regained("not yet", None, None)
    return Regained("regained", step * stage.tokens_per_step, step * stage.step_flops)


_COLUMNS = (
    Column("growth to", is_number=False),
    Column("before"),
    Column("right after"),
    Column("highest"),
    Column("tokens needed"),
    Column("FLOPs needed", drop=1),
    Column("by training"),
)

_CAPTION = (
    "Losses are validation losses in nats per token: at the end of the stage before, at step 0 of the new stage, and "
    "the highest until the old loss is reached again. Tokens and FLOPs needed: what the new stage trained up to the "
    "first evaluation that is as low again, within 0.001 nats. Evaluations are some steps apart, so that it may have "
    "been earlier. By training: the same in tokens, by the training loss, smoothed within the stage; 'within' "
    "where its first mean is as low already. Training losses at two contexts are not compared."
)


def section(runs: Sequence[RunReport], grouping: Grouping = BY_SCHEDULE) -> Section | None:
    """The growths of all runs, as a table and as one chart; None if there are none."""
    growths = [(run, list(_growths(run))) for run in runs]
    growths = [(run, found) for run, found in growths if found]
    if not growths:
        return None
    groups = tuple(Rows(tuple(map(_row, found)), run.name, run.description) for run, found in growths)
    said = Paragraph(_said([growth.recovery for _, found in growths for growth in found]))
    chart = _chart(growths, Legend.of(runs, grouping))
    return Section(
        "recovery",
        "The loss after each growth",
        (said, Table("recovery", _COLUMNS, groups, _CAPTION), chart),
        in_terminal=False,
    )


def _said(found: Sequence[Recovery]) -> str:
    """How many growths raised the loss, in a sentence or two."""
    at_once = sum(one.regained.state == "at once" for one in found)
    not_yet = [one for one in found if one.regained.state == "not yet"]
    if at_once == len(found):
        return "No evaluation after a growth was above the loss before it."
    said = f"After {len(found) - at_once} of {len(found)} growths, an evaluation was above the loss before the growth."
    if not_yet:
        said += f" So far, {len(not_yet)} of them did not reach the old loss again."
    return said


def _row(growth: _Growth) -> tuple[Cell, ...]:
    one, by_training = growth.recovery, growth.recovery.training_regained
    losses = (one.before, one.after, one.highest)
    if by_training is None:
        training = Cell(
            "-",
            why="The training losses of this stage, or of the one before, are not recorded here or have "
            "another context.",
        )
    else:
        text = _tokens(by_training)
        text = f"within {text}" if by_training.tokens == one.window_tokens else text
        training = Cell(text, by_training.tokens)
    flops = one.regained.flops
    return (
        Cell(one.stage),
        *(Cell(f"{loss:.4f}", loss) for loss in losses),
        Cell(_tokens(one.regained), one.regained.tokens),
        Cell(scientific(flops) if flops else _tokens(one.regained), flops),
        training,
    )


def _tokens(regained: Regained) -> str:
    return short_count(regained.tokens) if regained.state == "regained" and regained.tokens else regained.state


def _chart(growths: Sequence[tuple[RunReport, Sequence[_Growth]]], legend: Legend) -> Chart:
    """The loss above the old one over the tokens since each growth. Seeds share a colour and an entry."""
    pairs = [(run, growth) for run, found in growths for growth in found]
    most = share_of_marks(2 * len(pairs))
    series: list[Series] = []
    for run, growth in pairs:
        one, name = growth.recovery, f"{run.name} to {growth.stage.name}"
        group = f"{legend.group(run)} to {growth.stage.name}"
        role: Role = "control" if run.control else "ladder"
        last = _shown_until(growth)
        shown = [point for point in growth.evaluations if point[0] <= last]
        series.append(
            Series(
                f"{name}, validation",
                _marks(growth, shown, one.before, most),
                role,
                group,
                label=f"{group}, validation",
            )
        )
        if one.training_before is not None:
            shown = [point for point in growth.training if point[0] <= last]
            marks = _marks(growth, shown, one.training_before, most)
            series.append(Series(f"{name}, training", marks, "plain", group, label=f"{group}, training"))
    return Chart(
        key="recovery",
        title="Loss after each growth",
        summary=_said([growth.recovery for _, growth in pairs]),
        x_axes=(
            Axis("tokens", "data tokens since the growth"),
            Axis("flops", "training FLOPs since the growth"),
        ),
        y_axis=Axis("loss", "loss minus the loss before the growth (nats per token)"),
        series=tuple(series),
    )


def _shown_until(growth: _Growth) -> float:
    """The last step to draw: three times as far as the loss took to recover, and no less than a tenth of the stage."""
    one = growth.recovery
    found = [one.regained, *([one.training_regained] if one.training_regained else [])]
    if any(regained.tokens is None for regained in found):
        return math.inf
    steps = max((regained.tokens or 0) / max(1, growth.stage.tokens_per_step) for regained in found)
    return max(3 * steps, growth.stage.num_steps / 10)


def _marks(growth: _Growth, measured: Sequence[tuple[int, float]], before: float, most: int) -> tuple[Mark, ...]:
    values = [loss - before for _, loss in measured]
    return tuple(
        Mark(
            x={
                "tokens": measured[place][0] * growth.stage.tokens_per_step,
                "flops": measured[place][0] * growth.stage.step_flops,
            },
            y=values[place],
            facts=(
                ("loss", f"{measured[place][1]:.4f}"),
                ("tokens since the growth", short_count(measured[place][0] * growth.stage.tokens_per_step)),
            ),
        )
        for place in thinned(values, most)
    )
