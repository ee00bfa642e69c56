"""The charts of training, one for each question a reader may have."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from growctl.report.chart import Axis, Chart, Mark, Rule, Series, share_of_marks, thinned
from growctl.report.smoothing import smoothed, window_of
from growctl.report_training.curves import (
    AXES,
    RunLines,
    StageLines,
    curve,
    growth_rules,
    mfu_of,
    over_runs,
)
from growctl.runs_dir import RunPaths
from stages.counted import counted
from stages.spec import progress_at

_NATS = "loss (nats per token)"


def ladder_charts(ladders: Sequence[RunLines], groups: tuple[str, ...]) -> Iterator[Chart]:
    """The charts of ladders, one for each question; none for what no ladder has recorded.

    `groups`: all groups of the report, in the order of their colours.
    """
    rules = growth_rules(ladders)

    def speed(stage: StageLines) -> Sequence[float]:
        return stage.recorded.tokens_per_second

    def mfu(stage: StageLines) -> Sequence[float]:
        return mfu_of(stage.part, stage.recorded)

    if len(ladders) == 1:
        yield _losses(ladders[0])
    charts = (
        *([_losses_of_several(ladders)] if len(ladders) > 1 else []),
        _learning_rate("learning-rate", "Learning rate", ladders),
        _gradient_norm("gradient-norm", "Gradient norm", ladders),
        _chart("growth-ramp", "Growth ramp", "share of the way, 0 to 1", _all_ramps(ladders), rules),
        _chart("throughput", "Throughput", "data tokens per second of optimizer steps", over_runs(
            ladders, speed, "{:,.0f}".format), rules),
        _chart("mfu", "Model FLOPs utilisation (MFU)", "share of the devices' peak speed", over_runs(
            ladders, mfu, "{:.1%}".format), rules),
    )  # fmt: skip
    yield from (replace(chart, groups=groups) for chart in charts if chart.series)


def control_charts(controls: Sequence[RunLines], groups: tuple[str, ...]) -> Iterator[Chart]:
    """The charts that show whether controls were trained well; none for what no control has recorded."""
    title, label = "Training loss of the controls", f"smoothed training {_NATS}"
    losses = over_runs(controls, _smoothed, "{:.4f}".format)
    charts = (
        _chart("control-training-loss", title, label, losses, growth_rules(controls)),
        _learning_rate("control-learning-rate", "Learning rate of the controls", controls),
        _gradient_norm("control-gradient-norm", "Gradient norm of the controls", controls),
    )
    yield from (replace(chart, groups=groups) for chart in charts if chart.series)


def _learning_rate(key: str, title: str, runs: Sequence[RunLines]) -> Chart:
    rates = over_runs(runs, lambda stage: stage.recorded.learning_rate)
    return _chart(key, title, "learning rate", rates, growth_rules(runs))


def _gradient_norm(key: str, title: str, runs: Sequence[RunLines]) -> Chart:
    norms = over_runs(runs, lambda stage: stage.recorded.gradient_norm, positive=True)
    return _chart(key, title, "L2 norm of the gradient before clipping", norms, growth_rules(runs), is_log=True)


def _chart(
    key: str, title: str, y_label: str, series: tuple[Series, ...], rules: tuple[Rule, ...], *, is_log: bool = False
) -> Chart:
    values = [mark.y for one in series for mark in one.marks]
    summary = f"{title}: {counted(len(series), 'curve')}"
    if values:
        summary += f", from {min(values):.4g} to {max(values):.4g} ({y_label})"
    return Chart(key, title, f"{summary}.", AXES, Axis("y", y_label, is_log), series, rules)


def _smoothed(stage: StageLines) -> Sequence[float]:
    losses = stage.recorded.loss
    return smoothed(losses, window_of(len(losses)))


def _losses(lines: RunLines) -> Chart:
    """Training loss, as logged and smoothed, and validation loss of the only ladder."""
    most = share_of_marks(2 + len(lines.releases))
    nats = "{:.4f}".format
    series = (
        Series("training loss, as logged", curve(lines.stages, lambda stage: stage.recorded.loss, most, nats),
               group="training", is_joined=False),
        Series("training loss, smoothed", curve(lines.stages, _smoothed, most, nats), "ladder", "training"),
        Series("validation loss", _validation(lines, most), group="validation"),
        *(
            Series(f"{release.part.name}, smoothed", curve((release,), _smoothed, most, nats), "release", "training")
            for release in lines.releases
        ),
    )  # fmt: skip
    drawn = tuple(one for one in series if one.marks)
    return _chart("training-loss", f"Loss of {lines.run.name}", _NATS, drawn, growth_rules([lines]))


def _losses_of_several(ladders: Sequence[RunLines]) -> Chart:
    """Smoothed training loss as a line, and validation loss as points, of each ladder."""
    smooth = over_runs(ladders, _smoothed, "{:.4f}".format)
    most = share_of_marks(2 * len(ladders))
    points = (
        Series(f"{lines.run.name}, validation", marks, "plain", lines.group, False, f"{lines.entry}, validation loss")
        for lines in ladders
        if (marks := _validation(lines, most))
    )
    trained = (replace(one, role="plain", label=f"{one.label}, training loss") for one in smooth)
    return _chart("training-loss", "Loss of the ladders", _NATS, (*trained, *points), growth_rules(ladders))


def _validation(lines: RunLines, most: int) -> tuple[Mark, ...]:
    """The validation losses of a run, in the order of its stages, thinned to `most`."""
    marks = [
        Mark(
            stage.place(point.step),
            point.loss,
            (("value", f"{point.loss:.4f}"), ("step", f"{point.step:,} of {point.stage}")),
            is_end=point.point == "final",
        )
        for stage in lines.stages
        for point in lines.run.points
        if point.stage == stage.part.name
    ]
    return tuple(marks[place] for place in thinned([mark.y for mark in marks], most))


def _all_ramps(runs: Sequence[RunLines]) -> tuple[Series, ...]:
    """The ramps of all runs; of equal ones in one entry of the legend, the first."""
    found: dict[tuple[str, tuple[tuple[float, float], ...]], Series] = {}
    for series in (series for lines in runs for series in _ramps(lines)):
        found.setdefault((series.entry, tuple((mark.x["tokens"], mark.y) for mark in series.marks)), series)
    return tuple(found.values())


def _ramps(lines: RunLines) -> Iterator[Series]:
    """How far the ramp of a growth's new keys, or of tau, has come, in each stage that has one."""
    for index, stage in enumerate(lines.stages):
        spec = _spec(RunPaths(lines.run.directory).stage(index, stage.part.name).spec)
        for what, steps in (("keys of new tokens", _ramp_steps(spec)), ("tau", spec.get("anneal_steps"))):
            if isinstance(steps, int) and steps > 0 and stage.part.num_steps:
                last = stage.part.num_steps
                ends = (0, min(steps, last), min(steps + 1, last), last)
                marks = tuple(
                    Mark(stage.place(step), progress_at(step - 1, steps) if step else 0.0, (("step", f"{step:,}"),))
                    for step in dict.fromkeys(ends)
                )
                name = f"{lines.run.name}, {stage.part.name}: {what}"
                yield Series(name, marks, lines.role, lines.group, label=f"{lines.entry}: {what}")


def _spec(path: Path) -> dict[str, object]:
    """The TrainSpec of a stage as JSON values; empty if it is not here or cannot be read."""
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return spec if isinstance(spec, dict) else {}


def _ramp_steps(spec: dict[str, object]) -> object:
    """The steps of the ramp, if new keys start at 0."""
    return spec.get("ramp_steps") if '"key_ramp": 0.0' in json.dumps(spec.get("model")) else 0
