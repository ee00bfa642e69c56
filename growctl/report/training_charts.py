"""The charts of training, one for each question a reader may have."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from growctl.content.chart import Axis, Chart, Mark, Rule, Series
from growctl.report.curves import (
    AXES,
    RunLines,
    StageLines,
    curve,
    growth_rules,
    mfu_of,
    over_runs,
    share_of_marks,
)
from growctl.report.smoothing import smoothed, window_of
from growctl.report.thinning import thinned
from growctl.runs_dir import RunPaths
from stages.counted import counted
from stages.spec import progress_at

_NATS = "loss (nats per token)"


def training_charts(runs: Sequence[RunLines]) -> Iterator[Chart]:
    """One chart for each question; none for what no run has recorded."""
    ladders = [lines for lines in runs if not lines.run.control]
    controls = [lines for lines in runs if lines.run.control]
    rules = growth_rules(runs)
    for number, lines in enumerate(ladders, 1):
        yield _losses(lines, "training-loss" if number == 1 else f"training-loss-{number}", len(ladders))

    def learning_rate(stage: StageLines) -> Sequence[float]:
        return stage.recorded.learning_rate

    def gradient_norm(stage: StageLines) -> Sequence[float]:
        return stage.recorded.gradient_norm

    def speed(stage: StageLines) -> Sequence[float]:
        return stage.recorded.tokens_per_second

    def mfu(stage: StageLines) -> Sequence[float]:
        return mfu_of(stage.part, stage.recorded)

    overviews = (
        _chart("control-training-loss", "Training loss of the controls", f"smoothed training {_NATS}", over_runs(
            controls, _smoothed, "{:.4f}".format), growth_rules(controls)),
        _chart("learning-rate", "Learning rate", "learning rate", over_runs(runs, learning_rate), rules),
        _chart("gradient-norm", "Gradient norm", "L2 norm of the gradient before clipping", over_runs(
            runs, gradient_norm, positive=True), rules, is_log=True),
        _chart("growth-ramp", "Growth ramp", "share of the way, 0 to 1", tuple(
            series for lines in runs for series in _ramps(lines)), rules),
        _chart("throughput", "Throughput", "data tokens per second of optimizer steps", over_runs(
            runs, speed, "{:,.0f}".format), rules),
        _chart("mfu", "Model FLOPs utilisation (MFU)", "share of the devices' peak speed", over_runs(
            runs, mfu, "{:.1%}".format), rules),
    )  # fmt: skip
    yield from (chart for chart in overviews if chart.series)


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


def _losses(lines: RunLines, key: str, num_charts: int) -> Chart:
    """Training loss, as logged and smoothed, and validation loss of one run. `num_charts`: charts of this kind."""
    most = share_of_marks(num_charts * (2 + len(lines.releases)))
    nats = "{:.4f}".format
    validation = tuple(_validation(lines))
    places = thinned([mark.y for mark in validation], most)
    series = (
        Series("training loss, as logged", curve(lines.stages, lambda stage: stage.recorded.loss, most, nats),
               group="training", is_joined=False),
        Series("training loss, smoothed", curve(lines.stages, _smoothed, most, nats), "ladder", "training"),
        Series("validation loss", tuple(validation[place] for place in places), group="validation"),
        *(
            Series(f"{release.part.name}, smoothed", curve((release,), _smoothed, most, nats), "release", "training")
            for release in lines.releases
        ),
    )  # fmt: skip
    drawn = tuple(one for one in series if one.marks)
    return _chart(key, f"Loss of {lines.run.name}", _NATS, drawn, growth_rules([lines]))


def _validation(lines: RunLines) -> Iterator[Mark]:
    """The validation losses of a run, in the order of its stages."""
    for stage in lines.stages:
        for point in lines.run.points:
            if point.stage == stage.part.name:
                facts = (("validation loss", f"{point.loss:.4f}"), ("step", f"{point.step:,} of {point.stage}"))
                yield Mark(stage.place(point.step), point.loss, facts, is_end=point.point == "final")


def _ramps(lines: RunLines) -> Iterator[Series]:
    """How far the ramp of a growth's new keys, or of tau, has come, in each stage that has one."""
    for index, stage in enumerate(lines.stages):
        spec = _spec(RunPaths(lines.run.directory).stage(index, stage.part.name).spec)
        for what, steps in (("keys of new tokens", _ramp_steps(spec)), ("tau", spec.get("anneal_steps"))):
            if isinstance(steps, int) and steps > 0 and stage.part.num_steps:
                ends = (0, min(steps, stage.part.num_steps), stage.part.num_steps)
                marks = tuple(
                    Mark(stage.place(step), progress_at(step - 1, steps) if step else 0.0, (("step", f"{step:,}"),))
                    for step in dict.fromkeys(ends)
                )
                yield Series(f"{lines.run.name}, {stage.part.name}: {what}", marks, lines.role, lines.group)


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
