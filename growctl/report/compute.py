"""The chart of what models cost against how good they are: ladders, releases, controls, published models."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from growctl.analysis.costs import CURRENCIES
from growctl.analysis.data_groups import comparable_datasets, data_groups
from growctl.report.chart import Axis, Chart, Mark, Role, Rule, Series, share_of_marks, thinned
from growctl.report.legend import Legend
from growctl.report.published import Published, published_series
from growctl.runs.runs import EvaluationPoint, RunReport, StageReport
from growctl.text.formatting import exact, four_digits, scientific, short_count
from growctl.text.section import Cell, Column, Paragraph, Part, Rows, Section, Table, figure
from stages.counted import counted

COMPUTE = "compute-against-perplexity"
"""The key of the chart."""

_PERPLEXITY = Axis("perplexity", "validation perplexity", is_log=True)
_BITS_PER_BYTE = Axis("bits_per_byte", "validation bits per byte")
_HEADROOM = {"perplexity": 1.8, "bits_per_byte": 1.5}
"""The top of the chart, relative to the worst final value. It cuts off the start of training."""
_AXES = {
    "flops": "cumulative training compute (FLOPs)",
    "device_hours": "cumulative device time (device-hours)",
    "money": "cumulative cost (in the currency of the price per device-hour)",
    "gpu_energy": "cumulative energy of the GPUs (kWh)",
    "cpu_energy": "cumulative energy of processors and memory (kWh)",
}
"""The axes, by currency (growctl/analysis/costs.py)."""

Costs = Mapping[str, float]
"""What a model cost, by the key of the axis; without the axes on which it is not known."""


def section(runs: Sequence[RunReport], legend: Legend, overlays: Sequence[Published] = ()) -> Section:
    """A chart for each dataset, because perplexities of two datasets share no axis."""
    groups = data_groups(runs)
    charts = [_chart(members, legend, overlays) for members in groups.values()] or [_chart((), legend, overlays)]
    if len(groups) > 1:
        charts = [
            replace(chart, key=f"{COMPUTE}-{number}", title=f"{chart.title}, {dataset.name}")
            for number, (dataset, chart) in enumerate(zip(groups, charts, strict=True), 1)
        ]
    return Section("compute", "Compute against perplexity", tuple(charts), in_terminal=False)


def compute_chart(runs: Sequence[RunReport], keys: Sequence[str] = ()) -> Chart:
    """Validation perplexity against cumulative cost, for ladders, their releases and their controls."""
    return _chart(runs, Legend.of(runs, keys))


def bits_per_byte_chart(runs: Sequence[RunReport], key: str = "bits-per-byte") -> Chart | None:
    """The same in bits per byte, which compares tokenizers; None if none is recorded."""
    chart = _chart(runs, Legend.of(runs), y_axis=_BITS_PER_BYTE)
    if not any(series.marks for series in chart.series):
        return None
    return replace(chart, key=f"{key}-against-compute", title="Compute against bits per byte")


def _chart(
    runs: Sequence[RunReport], legend: Legend, overlays: Sequence[Published] = (), y_axis: Axis = _PERPLEXITY
) -> Chart:
    """Replayed work does not count, reused work does. FLOPs of an evaluation are exact. The other costs are known by
    stage: an evaluation after a share of a stage's steps is placed at that share of what the stage's kept work cost."""
    costs = {run.name: _stage_costs(run) for run in runs}
    ends = [after for by_stage in costs.values() for _, after in by_stage.values()]
    keys = [key for key in _AXES if ends and all(key in end for end in ends) and any(end[key] > 0 for end in ends)]
    keys = keys or ["flops"]
    most = share_of_marks(len(runs))
    series = [
        *(line for run in sorted(runs, key=lambda run: run.control is not None)
          for line in _lines(run, legend, costs[run.name], keys, y_axis.key, most)),
        *(published for overlay in overlays for published in published_series(overlay)),
    ]  # fmt: skip
    finals = [mark.y for line in series for mark in line.marks if mark.is_end]
    return Chart(
        key=COMPUTE,
        title="Compute against perplexity",
        summary=_summary(runs, y_axis),
        x_axes=tuple(Axis(key, _AXES[key], is_log=True) for key in keys),
        y_axis=y_axis,
        series=tuple(series),
        rules=_rules(runs, legend, costs, keys),
        y_limit=_HEADROOM[y_axis.key] * max(finals) if finals else None,
        groups=legend.groups,
    )


def _stage_costs(run: RunReport) -> dict[str, tuple[Costs, Costs]]:
    """What the model had cost before and after each stage and release, by its name."""

    def cost(path: Sequence[StageReport]) -> Costs:
        return {each.key: cost for each in CURRENCIES if (cost := each.of(run, path)) is not None}

    return {part.name: (cost(run.path(part)[:-1]), cost(run.path(part))) for part in run.parts}


def _lines(
    run: RunReport, legend: Legend, costs: Mapping[str, tuple[Costs, Costs]], keys: Sequence[str], y: str, most: int
) -> Iterator[Series]:
    """The evaluations of a run, and a branch for each release from the end of its stage to its own end."""
    group, tokens, ends = legend.group(run), 0, dict[str, Mark]()
    points = [run.points[place] for place in _kept(run.points, y, most)]
    marks: list[Mark] = []
    for part in run.parts:
        if part.branch_of is None:
            for point in (point for point in points if point.stage == part.name):
                is_end = point.point == "final" and (run.control is None or part is run.stages[-1])
                marks.append(_mark(part, costs[part.name], keys, tokens, point, y, is_end=is_end))
                if point.point == "final":
                    ends[part.name] = marks[-1]
            tokens += part.train_tokens
    if run.control is None or marks:
        role: Role = "ladder" if run.control is None else "control"
        yield Series(run.name, tuple(marks), role, group, label=legend.entry(run))
    for release in run.releases:
        loss, perplexity = release.validation_loss, release.perplexity
        if loss is not None and perplexity is not None and math.isfinite(perplexity):
            spent = sum(part.train_tokens for part in run.path(release)[:-1])
            end = EvaluationPoint(release.name, "final", release.cumulative_flops, loss, perplexity,
                                  release.bits_per_byte, release.num_steps)  # fmt: skip
            if getattr(end, y) is not None:
                branch = [replace(ends[release.branch_of], is_end=False, facts=())] if release.branch_of in ends else []
                last = _mark(release, costs[release.name], keys, spent, end, y, is_end=True)
                label = f"{legend.ladders[run.name]}, releases"
                yield Series(f"{release.name} of {run.name}", (*branch, last), "release", group, label=label)


def _kept(points: Sequence[EvaluationPoint], y: str, most: int) -> list[int]:
    """The points to draw: those with a value, thinned, and the ends of all stages."""
    values = [math.nan if getattr(point, y) is None else getattr(point, y) for point in points]
    ends = {number for number, point in enumerate(points) if point.point != "interval"}
    return sorted({*thinned(values, most), *(number for number in ends if math.isfinite(values[number]))})


def _mark(
    part: StageReport, costs: tuple[Costs, Costs], keys: Sequence[str], tokens: int, point: EvaluationPoint, y: str,
    *, is_end: bool,
) -> Mark:  # fmt: skip
    """A mark at the cost up to an evaluation, without what is not booked yet: a running stage books steps in turns."""
    before, after = costs
    share = 1.0 if point.point == "final" else point.step / part.num_steps if part.num_steps else float(point.step > 0)
    cost = {key: before[key] + share * (after[key] - before[key]) for key in after} if share <= 1.0 else {}
    cost = {key: value for key, value in cost.items() if value > 0} | {"flops": point.cumulative_flops}
    facts = {
        "stage": f"{part.name}, {point.point.replace('_', ' ')}",
        "parameters": f"{part.num_parameters:,}",
        "FLOPs": exact(point.cumulative_flops),
        "tokens": f"{tokens + round(min(1.0, share) * part.train_tokens):,}",
        "loss (nats per token)": f"{point.loss:.4f}",
        "perplexity": f"{point.perplexity:.3f}",
        **({} if point.bits_per_byte is None else {"bits per byte": f"{point.bits_per_byte:.4f}"}),
        **{currency.name: currency.shown(cost[currency.key]) for currency in CURRENCIES[1:] if currency.key in cost},
    }
    drawn = {key: cost[key] for key in keys if key in cost}
    return Mark(drawn, getattr(point, y), tuple(facts.items()), is_end=is_end)


def _rules(
    runs: Sequence[RunReport], legend: Legend, costs: Mapping[str, Mapping[str, tuple[Costs, Costs]]],
    keys: Sequence[str],
) -> tuple[Rule, ...]:  # fmt: skip
    """A line at each growth of the ladders; seeds of one ladder share it."""
    found: dict[tuple[str, str, str], Rule] = {}
    for run in (run for run in runs if run.control is None):
        sizes = [run.base.num_parameters if run.base and run.base.flops else None]
        sizes += [stage.num_parameters for stage in run.stages]
        for stage, (before, after) in zip(run.stages, pairwise(sizes), strict=True):
            cost = costs[run.name][stage.name][0]
            x = {key: cost[key] for key in keys if cost.get(key, 0.0) > 0.0}
            if before is not None and before != after and (stage.train_tokens or stage.loss_after_growth is not None):
                label, group = f"grown to {short_count(stage.num_parameters)}", legend.group(run)
                found.setdefault((group, label, scientific(x.get("flops", 0.0))), Rule(x, label, group))
    return tuple(found.values())


def _summary(runs: Sequence[RunReport], y_axis: Axis) -> str:
    """What the chart shows, for readers who cannot see it."""
    ladders = sum(run.control is None for run in runs)
    what = f"{counted(ladders, 'ladder')} and {counted(len(runs) - ladders, 'control')}"
    said = f"{y_axis.label.capitalize()} against cumulative cost, for {what}"
    ended = [run for run in runs if run.final_loss is not None]
    if not ended:
        return f"{said}. No run has a final loss yet."
    if y_axis is not _PERPLEXITY:
        return f"{said}."
    best = min(ended, key=lambda run: run.final_loss or math.inf)
    return (
        f"{said}, of which {len(ended)} have a final loss. {best.name} ends lowest, at perplexity "
        f"{math.exp(best.final_loss or 0.0):.2f} for {scientific(best.cumulative_flops)} FLOPs."
    )


_COLUMNS = (
    Column("stage", is_number=False),
    Column("parameters", drop=1),
    Column("FLOPs so far"),
    Column("perplexity", drop=2),
    Column("bits per byte"),
)
_EXPLAINED = (
    "Bits per byte is the loss per byte of text instead of per token, so it does not depend on how a tokenizer cuts "
    "the text. These datasets hold the same validation text. Their training texts may still differ."
)


def bits_per_byte_section(runs: Sequence[RunReport]) -> Section | None:
    """A table and a chart for each validation text that several datasets share; None if no two datasets share one."""
    groups = data_groups(runs)
    together = [some for some in comparable_datasets(groups) if len(some) > 1]
    parts: list[Part] = [Paragraph(_EXPLAINED)] if together else []
    for number, datasets in enumerate(together, 1):
        alike = [(dataset.name, run) for dataset in datasets for run in groups[dataset]]
        rows = (Rows(tuple(_row(part) for part in run.parts if part.finished), run.name, name) for name, run in alike)
        key = f"bits-per-byte-{number}"
        parts.append(Paragraph(" and ".join(dataset.name for dataset in datasets), "heading"))
        parts.append(Table(key, _COLUMNS, tuple(rows)))
        if chart := bits_per_byte_chart([run for _, run in alike], key):
            parts.append(chart)
    return Section("bits-per-byte", "Bits per byte", tuple(parts)) if parts else None


def _row(stage: StageReport) -> tuple[Cell, ...]:
    return (
        Cell(stage.name),
        figure(stage.num_parameters, short_count),
        figure(stage.cumulative_flops, scientific),
        figure(stage.perplexity, four_digits),
        figure(stage.bits_per_byte),
    )
