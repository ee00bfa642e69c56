"""The chart of what models cost against how good they are: ladders, releases, controls."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import dropwhile

from growctl.analysis.data_groups import data_groups
from growctl.report.chart import Axis, Chart, Mark, Role, Series
from growctl.report.legend import Legend
from growctl.runs.runs import RunReport
from growctl.text.section import Section
from stages.counted import counted

COMPUTE = "compute-against-perplexity"
"""The key of the chart."""

_FLOPS = Axis("cumulative training compute (FLOPs)", is_log=True)
_PERPLEXITY = Axis("validation perplexity", is_log=True)
_HEADROOM = 1.8
"""Runs are drawn from where they are at most this many times above the worst end: the start of training is cut off."""


def section(runs: Sequence[RunReport], legend: Legend) -> Section:
    """A chart for each dataset, because perplexities of two datasets share no axis."""
    groups = data_groups(runs)
    charts = [compute_chart(members, legend) for members in groups.values()] or [compute_chart((), legend)]
    if len(groups) > 1:
        charts = [
            replace(chart, key=f"{COMPUTE}-{number}", title=f"{chart.title}, {dataset.name}")
            for number, (dataset, chart) in enumerate(zip(groups, charts, strict=True), 1)
        ]
    return Section("compute", "Compute against perplexity", tuple(charts), in_terminal=False)


def compute_chart(runs: Sequence[RunReport], legend: Legend | None = None) -> Chart:
    """Validation perplexity against training FLOPs, for ladders, their releases and their controls. Replayed work does
    not count, reused work does."""
    legend = legend or Legend.of(runs)
    ordered = sorted(runs, key=lambda run: run.control is not None)
    lines = [line for run in ordered for line in _lines(run, legend)]
    top = _HEADROOM * max((mark.y for line in lines for mark in line.marks if mark.is_end), default=math.inf)
    lines = [replace(line, marks=tuple(dropwhile(lambda mark: mark.y > top, line.marks))) for line in lines]
    ladders = [run for run in runs if run.control is None]
    return Chart(
        key=COMPUTE,
        title="Compute against perplexity",
        summary=_summary(runs),
        x_axis=_FLOPS,
        y_axis=_PERPLEXITY,
        series=tuple(lines),
        rules=legend.growths(ladders, lambda _, stage: stage.cumulative_flops - stage.flops),
        groups=legend.groups,
    )


def _lines(run: RunReport, legend: Legend) -> Iterator[Series]:
    """The evaluations of a run, and a branch for each release from the end of its stage to its own end."""
    ends: dict[str, Mark] = {}
    marks: list[Mark] = []
    for stage in run.stages:
        for point in (each for each in run.points if each.stage == stage.name and math.isfinite(each.perplexity)):
            is_end = point.point == "final" and (run.control is None or stage is run.stages[-1])
            marks.append(Mark(point.cumulative_flops, point.perplexity, is_end))
            if point.point == "final":
                ends[stage.name] = marks[-1]
    role: Role = "ladder" if run.control is None else "control"
    if run.control is None or marks:
        yield Series(run.name, tuple(marks), role, legend.group(run), label=legend.entry(run))
    for release in run.releases:
        if release.perplexity is not None and math.isfinite(release.perplexity):
            branch = [replace(ends[release.branch_of], is_end=False)] if release.branch_of in ends else []
            marks = [*branch, Mark(release.cumulative_flops, release.perplexity, is_end=True)]
            name, label = f"{release.name} of {run.name}", f"{legend.ladders[run.name]}, releases"
            yield Series(name, tuple(marks), "release", legend.group(run), label=label)


def _summary(runs: Sequence[RunReport]) -> str:
    """What the chart shows, for readers who cannot see it."""
    ladders = sum(run.control is None for run in runs)
    what = f"{counted(ladders, 'ladder')} and {counted(len(runs) - ladders, 'control')}"
    losses = [(run.final_loss, run.name) for run in runs if run.final_loss is not None]
    best = f"{min(losses)[1]} ends lowest, at {min(losses)[0]:.4f} nats." if losses else "No run has a final loss yet."
    return f"Validation perplexity against cumulative cost, for {what}. {best}"
