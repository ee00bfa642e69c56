"""The chart of what models cost against how good they are: ladders, releases, controls."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile

from growctl.analysis.costs import CURRENCIES
from growctl.analysis.data_groups import comparable_datasets, data_groups
from growctl.report.chart import Axis, Chart, Mark, Role, Series
from growctl.report.legend import Legend
from growctl.runs.runs import EvaluationPoint, RunReport, StageReport
from growctl.text.section import Section
from stages.counted import counted

COMPUTE = "compute-against-perplexity"
"""The key of the chart."""

_PERPLEXITY = Axis("perplexity", "validation perplexity", is_log=True)
_BITS_PER_BYTE = Axis("bits_per_byte", "validation bits per byte")
_HEADROOM = {"perplexity": 1.8, "bits_per_byte": 1.5}
"""Runs are drawn from where they are at most this many times above the worst end: the start of training is cut off."""
_AXES = {
    "flops": "cumulative training compute (FLOPs)",
    "device_hours": "cumulative device time (device-hours)",
    "money": "cumulative cost (in the currency of the price per device-hour)",
    "gpu_energy": "cumulative energy of the GPUs (kWh)",
}
"""The axes, by currency (growctl/analysis/costs.py)."""


def section(runs: Sequence[RunReport], legend: Legend) -> Section:
    """A chart for each dataset, because perplexities of two datasets share no axis, and one in bits per byte for each
    validation text that several datasets share."""
    groups = data_groups(runs)
    charts = [compute_chart(members, legend) for members in groups.values()] or [compute_chart((), legend)]
    if len(groups) > 1:
        charts = [
            replace(chart, key=f"{COMPUTE}-{number}", title=f"{chart.title}, {dataset.name}")
            for number, (dataset, chart) in enumerate(zip(groups, charts, strict=True), 1)
        ]
    for datasets in (some for some in comparable_datasets(groups) if len(some) > 1):
        alike = [run for dataset in datasets for run in groups[dataset]]
        title = f"Compute against bits per byte, {' and '.join(dataset.name for dataset in datasets)}"
        chart = compute_chart(alike, y_axis=_BITS_PER_BYTE)
        charts.append(replace(chart, key=f"bits-per-byte-{len(charts)}", title=title))
    return Section("compute", "Compute against perplexity", tuple(charts), in_terminal=False)


def compute_chart(runs: Sequence[RunReport], legend: Legend | None = None, y_axis: Axis = _PERPLEXITY) -> Chart:
    """Validation perplexity against cumulative cost, for ladders, their releases and their controls. Replayed work does
    not count, reused work does."""
    legend = legend or Legend.of(runs)
    costs = {(run.name, part.name): _costs(run, run.path(part)) for run in runs for part in run.parts}
    keys = [key for key in _AXES if costs and all(key in cost for cost in costs.values())]
    keys = [key for key in keys if any(cost[key] > 0 for cost in costs.values())] or ["flops"]
    ordered = sorted(runs, key=lambda run: run.control is not None)
    lines = [line for run in ordered for line in _lines(run, legend, y_axis.key)]
    top = max((mark.y for line in lines for mark in line.marks if mark.is_end), default=math.inf)
    top *= _HEADROOM[y_axis.key]
    lines = [replace(line, marks=tuple(dropwhile(lambda mark: mark.y > top, line.marks))) for line in lines]

    def place(run: RunReport, stage: StageReport) -> Mapping[str, float]:
        before = _costs(run, run.path(stage)[:-1])
        return {key: before[key] for key in keys if key in before}

    return Chart(
        key=COMPUTE,
        title="Compute against perplexity",
        summary=_summary(runs, y_axis),
        x_axes=tuple(Axis(key, _AXES[key], is_log=True) for key in keys),
        y_axis=y_axis,
        series=tuple(lines),
        rules=legend.growths([run for run in runs if run.control is None], place),
        groups=legend.groups,
    )


def _costs(run: RunReport, path: Sequence[StageReport]) -> dict[str, float]:
    """What the model at the end of `path` cost, by the key of the currency, where it is known."""
    return {each.key: cost for each in CURRENCIES if (cost := each.of(run, path)) is not None}


def _lines(run: RunReport, legend: Legend, y: str) -> Iterator[Series]:
    """The evaluations of a run, and a branch for each release from the end of its stage to its own end."""
    points = [point for point in run.points if math.isfinite(getattr(point, y) or math.nan)]
    ends: dict[str, Mark] = {}
    marks: list[Mark] = []
    for stage in run.stages:
        for point in (point for point in points if point.stage == stage.name):
            is_end = point.point == "final" and (run.control is None or stage is run.stages[-1])
            marks.append(_mark(run, stage, point, y, is_end=is_end))
            if point.point == "final":
                ends[stage.name] = marks[-1]
    role: Role = "ladder" if run.control is None else "control"
    if run.control is None or marks:
        yield Series(run.name, tuple(marks), role, legend.group(run), label=legend.entry(run))
    for release in run.releases:
        loss, perplexity = release.validation_loss, release.perplexity
        if loss is not None and perplexity is not None and math.isfinite(perplexity):
            end = EvaluationPoint(release.name, "final", release.cumulative_flops, loss, perplexity,
                                  release.bits_per_byte, release.num_steps)  # fmt: skip
            if getattr(end, y) is not None:
                branch = [replace(ends[release.branch_of], is_end=False)] if release.branch_of in ends else []
                label = f"{legend.ladders[run.name]}, releases"
                last = _mark(run, release, end, y, is_end=True)
                yield Series(
                    f"{release.name} of {run.name}", (*branch, last), "release", legend.group(run), label=label
                )


def _mark(run: RunReport, part: StageReport, point: EvaluationPoint, y: str, *, is_end: bool) -> Mark:
    """FLOPs of an evaluation are exact. The other costs are known by stage: after a share of a stage's steps, a model
    has cost that share of what the stage's kept work cost. A running stage books its steps in turns, so that what is
    not booked yet has no cost."""
    before, after = _costs(run, run.path(part)[:-1]), _costs(run, run.path(part))
    share = 1.0 if point.point == "final" else point.step / part.num_steps if part.num_steps else float(point.step > 0)
    cost = {key: before[key] + share * (after[key] - before[key]) for key in after} if share <= 1.0 else {}
    cost = {key: value for key, value in cost.items() if value > 0} | {"flops": point.cumulative_flops}
    return Mark(cost, getattr(point, y), is_end=is_end)


def _summary(runs: Sequence[RunReport], y_axis: Axis) -> str:
    """What the chart shows, for readers who cannot see it."""
    ladders = sum(run.control is None for run in runs)
    what = f"{counted(ladders, 'ladder')} and {counted(len(runs) - ladders, 'control')}"
    losses = [(run.final_loss, run.name) for run in runs if run.final_loss is not None]
    best = f"{min(losses)[1]} ends lowest, at {min(losses)[0]:.4f} nats." if losses else "No run has a final loss yet."
    return f"{y_axis.label.capitalize()} against cumulative cost, for {what}. {best}"
