"""Draws the report's chart: validation perplexity against cumulative compute, for ladders and controls."""

import io
import math
from collections.abc import Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullFormatter, NullLocator

from growctl.report.read import EvaluationPoint, RunReport
from growctl.text.escaping import visible
from growctl.text.formatting import short_count
from growctl.text.html import PLACEHOLDER, svg_element

_LADDERS = ("#0072b2", "#7a3fb0", "#008c8c")
_CONTROLS = ("#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#a0522d", "#7f7f7f", "#9a9a00")
_HEADROOM = 1.8
"""The top of the chart, relative to the worst final perplexity. It cuts off the start of training."""


def draw(runs: Sequence[RunReport], ink: str = "#30353d") -> Figure:
    """The chart as a figure of 1200 x 750 pixels, with text and axes in the colour `ink`.

    Lines and small dots are evaluations within a run, before its decay; large marks are the ends of stages (ladders)
    and of runs (controls), hollow diamonds those of releases. A dashed line joins the controls of one kind and size.
    """
    figure = Figure(figsize=(8.0, 5.0), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    ladders = [run for run in runs if run.control is None]
    controls = [run for run in runs if run.control is not None]
    for i, run in enumerate(ladders):
        color = _LADDERS[i % len(_LADDERS)]
        first = run.base or (run.stages[0] if run.stages else None)
        base = f" from {short_count(first.num_parameters)}" if first else ""
        _draw_run(axes, run, f"{run.name}, ladder{base}", color, "o")
        _mark_growths(axes, run, color)
        _draw_releases(axes, run, color)
    for i, run in enumerate(controls):
        marker = "sDvP*"[i // len(_CONTROLS) % 5]
        name = run.name.removeprefix(f"{run.control_of}-") if len(ladders) == 1 else run.name
        label = f"{name}, {short_count(run.stages[-1].num_parameters)}" if run.stages else name
        _draw_run(axes, run, label, _CONTROLS[i % len(_CONTROLS)], marker)
    _join_final_points(axes, controls, ink)
    _frame(axes, runs, ink)
    if runs:
        columns = 2 if max(len(str(line.get_label())) for line in axes.lines) < 60 else 1
        figure.legend(loc="outside lower left", ncols=columns, fontsize=8, labelcolor=ink, frameon=False)
    return figure


def png(runs: Sequence[RunReport]) -> bytes:
    """The chart as a PNG with a white background."""
    buffer = io.BytesIO()
    draw(runs).savefig(buffer, format="png")
    return buffer.getvalue()


def svg(runs: Sequence[RunReport]) -> str:
    """The chart as an `<svg>` element to embed in a page: transparent, and in the page's text colour."""
    return svg_element(draw(runs, ink=PLACEHOLDER))


def _draw_run(axes: Axes, run: RunReport, label: str, color: str, marker: str) -> None:
    is_ladder = run.control is None
    width, alpha, zorder = (2.0, 0.9, 3) if is_ladder else (0.9, 0.55, 2)
    within = [point for point in run.points if point.point == "interval"]
    ends = [p for p in run.points if p.point == "final" and (is_ladder or p.stage == run.stages[-1].name)]
    axes.plot(*_places(run.points), color=color, linewidth=width, alpha=alpha, zorder=zorder)
    axes.plot(*_places(within), "o", color=color, markersize=2.5, alpha=alpha, zorder=zorder)
    # An unfinished run has no points here, but still gets an entry in the legend.
    axes.plot(
        *_places(ends), marker, color=color, markersize=8, zorder=zorder + 2, label=visible(label).replace("$", r"\$")
    )


def _draw_releases(axes: Axes, run: RunReport, color: str) -> None:
    """Draws each release as a branch from its stage's end to a diamond."""
    ends = {point.stage: point for point in run.points if point.point == "final"}
    label: str | None = visible(f"{run.name}, releases").replace("$", r"\$")
    for release in _release_points(run):
        way = [ends[release.stage], release] if release.stage in ends else [release]
        axes.plot(*_places(way), "--", color=color, linewidth=1.4, zorder=3)
        axes.plot(*_places([release]), "D", color=color, markersize=7, markerfacecolor="none", zorder=6, label=label)
        label = None  # one entry in the legend for all


def _release_points(run: RunReport) -> list[EvaluationPoint]:
    """The end of each release that has a finite loss, named for the stage that it branches from."""
    return [
        EvaluationPoint(end.branch_of or "", "final", end.cumulative_flops, end.validation_loss, end.perplexity)
        for end in run.releases
        if end.validation_loss is not None and end.perplexity is not None and math.isfinite(end.perplexity)
    ]


def _places(points: Sequence[EvaluationPoint]) -> tuple[list[float], list[float]]:
    return [point.cumulative_flops for point in points], [point.perplexity for point in points]


def _join_final_points(axes: Axes, controls: Sequence[RunReport], ink: str) -> None:
    curves: dict[tuple[str | None, str | None, int], list[tuple[float, float]]] = {}
    for run in controls:
        if run.final_loss is not None:
            key = (run.control_of, run.control, run.stages[-1].num_parameters)
            curves.setdefault(key, []).append((run.cumulative_flops, math.exp(run.final_loss)))
    for curve in (sorted(curve) for curve in curves.values() if len(curve) > 1):
        axes.plot(*zip(*curve, strict=True), "--", color=ink, linewidth=0.8, alpha=0.6, zorder=2)


def _mark_growths(axes: Axes, run: RunReport, color: str) -> None:
    grown = [(before.cumulative_flops, stage) for before, stage in pairwise(run.stages)]
    if run.base and run.base.flops and run.stages and run.stages[0].num_parameters > run.base.num_parameters:
        grown.insert(0, (run.base.flops, run.stages[0]))
    for flops, stage in grown:
        if not stage.train_tokens and stage.loss_after_growth is None:
            continue
        axes.axvline(flops, color=color, linestyle=":", linewidth=1.0, alpha=0.7, zorder=1)
        axes.annotate(
            f"grown to\n{short_count(stage.num_parameters)}",
            xy=(flops, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8,
            color=color,
        )


def _frame(axes: Axes, runs: Sequence[RunReport], ink: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    points = [p for run in runs for p in (*run.points, *_release_points(run)) if p.cumulative_flops > 0]
    ends = [point.perplexity for point in points if point.point == "final"]
    seen = [p for p in points if not ends or p.perplexity <= _HEADROOM * max(ends)]
    if seen:
        axes.set_xlim(*_span([point.cumulative_flops for point in seen]))
        axes.set_ylim(*_span([point.perplexity for point in seen]))
    else:
        axes.text(0.5, 0.5, "no evaluations yet", transform=axes.transAxes, ha="center", color=ink)
    for axis, words in ((axes.xaxis, _power_of_ten), (axes.yaxis, lambda value, _: f"{value:g}")):
        axis.set_major_locator(_locator(*axis.get_view_interval()))
        axis.set_major_formatter(FuncFormatter(words))
        axis.set_minor_formatter(NullFormatter())
        if not seen:
            axis.set_major_locator(NullLocator())
            axis.set_minor_locator(NullLocator())
    axes.set_xlabel("cumulative training compute (FLOPs, replayed work not counted)", color=ink)
    axes.set_ylabel("validation perplexity", color=ink)
    axes.tick_params(which="both", color=ink, labelcolor=ink)
    axes.grid(color=ink, alpha=0.12, linewidth=0.8)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(ink)


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Limits of a log axis: the range of the values plus a margin of at least 5 % at each end."""
    low, high = min(values), max(values)
    room = max(0.06 * math.log(high / low), 0.05)
    return low * math.exp(-room), high * math.exp(room)


def _locator(low: float, high: float) -> Locator:
    if high / low < 5:
        return MaxNLocator(nbins=6, steps=[1, 2, 5, 10])
    return LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 50 else (1.0,))


def _power_of_ten(value: float, _: int) -> str:
    exponent = math.floor(math.log10(value) + 1e-9) if value > 0 else 0
    factor = value / 10.0**exponent
    return rf"$10^{{{exponent}}}$" if abs(factor - 1) < 1e-6 else rf"${factor:g}\times10^{{{exponent}}}$"
