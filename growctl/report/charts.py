"""The chart of compute against perplexity, as data: ladders, their releases and their controls, at what they cost."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from growctl.analysis.data_groups import data_groups
from growctl.analysis.runs import EvaluationPoint, RunReport, StageReport
from growctl.published.figures import published_series
from growctl.published.overlays import Published
from growctl.report.chart import Axis, Chart, Mark, Role, Rule, Series
from growctl.seeds.grouping import BY_SCHEDULE, Grouping
from growctl.seeds.legend import Legend, kind_and_size
from growctl.text.formatting import exact, scientific, short_count
from growctl.text.section import Section
from growctl.verdicts.costs import CURRENCIES
from stages.counted import counted

COMPUTE = "compute-against-perplexity"
"""The key of the chart."""

_HEADROOM = 1.8
"""The top of the chart, relative to the worst final perplexity. It cuts off the start of training."""

_LABELS = {
    "flops": "cumulative training compute (FLOPs)",
    "device_hours": "cumulative device time (device-hours)",
    "money": "cumulative cost (in the currency of the price per device-hour)",
    "gpu_energy": "cumulative energy of the GPUs (kWh)",
    "cpu_energy": "cumulative energy of processors and memory (kWh)",
}
"""The axes: one for each currency (growctl/verdicts/costs.py)."""

_MEASURED = {
    "interval": "on the way",
    "after_growth": "right after the growth",
    "start": "at the start of the stage",
    "final": "at the end of the stage",
}

Costs = Mapping[str, float]
"""What a model cost, by the key of the axis; without the axes on which it is not known."""


def section(runs: Sequence[RunReport], grouping: Grouping = BY_SCHEDULE, overlays: Sequence[Published] = ()) -> Section:
    """The chart as a section, for the page. Each dataset has a chart of its own: their perplexities share no axis."""
    charts = compute_charts(runs, grouping, overlays)
    return Section("compute", "Compute against perplexity", charts, in_terminal=False)


def compute_charts(
    runs: Sequence[RunReport], grouping: Grouping = BY_SCHEDULE, overlays: Sequence[Published] = ()
) -> tuple[Chart, ...]:
    """A chart for each dataset of `runs`, with its name in the title if there are several."""
    groups = data_groups(runs)
    if len(groups) < 2:
        return (compute_chart(runs, grouping, overlays),)
    charts = [(group.name, compute_chart(group.runs, grouping, overlays)) for group in groups]
    return tuple(
        replace(chart, key=f"{chart.key}-{number}", title=f"{chart.title}, {name}")
        for number, (name, chart) in enumerate(charts, 1)
    )


def compute_chart(
    runs: Sequence[RunReport], grouping: Grouping = BY_SCHEDULE, overlays: Sequence[Published] = ()
) -> Chart:
    """Validation perplexity against cumulative cost, for ladders, their releases and their controls.

    The x axes are FLOPs, device-hours, money and energy; those that are not known for all work of all runs are left
    out. Replayed work does not count, reused work does. FLOPs of an evaluation are exact. The other costs are known by
    stage, so an evaluation after a share of a stage's steps is placed at that share of what the stage's kept work cost,
    after all stages before: start-up, evaluations and checkpoints are spread evenly over the steps. `overlays` are
    series of their own; they move no other mark.
    """
    costs = {run.name: _stage_costs(run) for run in runs}
    keys = _known_axes([after for of_run in costs.values() for _, after in of_run.values()])
    legend = Legend.of(runs, grouping)
    drawn = [_DrawnRun(run, legend, costs[run.name], keys) for run in runs]
    ladders, controls = ([each for each in drawn if (each.run.control is None) == is_ladder] for is_ladder in (1, 0))
    series = [
        *(each.series() for each in ladders),
        *(release for each in ladders for release in each.releases()),
        *(each.series() for each in controls),
        *_budgets(controls, legend),
        *(published for overlay in overlays for published in published_series(overlay)),
    ]
    ends = [mark.y for each in series for mark in each.marks if mark.is_end]
    return Chart(
        key=COMPUTE,
        title="Compute against perplexity",
        summary=_summary(runs),
        x_axes=tuple(Axis(key, _LABELS[key], is_log=True) for key in keys),
        y_axis=Axis("perplexity", "validation perplexity", is_log=True),
        series=tuple(series),
        rules=_merged([rule for each in ladders for rule in each.growths()]),
        y_limit=_HEADROOM * max(ends) if ends else None,
        groups=legend.groups,
    )


@dataclass(frozen=True)
class _DrawnRun:
    """A run with the cost of its model before and after each stage and release, on the axes `keys`."""

    run: RunReport
    legend: Legend
    costs: Mapping[str, tuple[Costs, Costs]]
    keys: Sequence[str]

    def series(self) -> Series:
        """The evaluations of its stages."""
        is_ladder = self.run.control is None
        stages = {stage.name: stage for stage in self.run.stages}
        marks = []
        for point in self.run.points:
            stage = stages[point.stage]
            cost = self._cost_at(point, stage)
            share = point.step / stage.num_steps if stage.num_steps else 0.0
            tokens = self._tokens_before(stage.name) + round(share * stage.train_tokens)
            facts = _facts(stage, cost, tokens, point)
            is_end = point.point == "final" and (is_ladder or stage is self.run.stages[-1])
            marks.append(Mark(self._drawn(cost), point.perplexity, facts, is_end=is_end))
        role: Role = "ladder" if is_ladder else "control"
        return Series(self.run.name, tuple(marks), role, self.legend.group(self.run), label=self.legend.entry(self.run))

    def releases(self) -> Iterator[Series]:
        """A branch for each release, from the end of its stage to its own end."""
        ends = {point.stage: point for point in self.run.points if point.point == "final"}
        for release in self.run.releases:
            branch, end = release.branch_of or "", _end(release)
            before, after = self.costs[release.name]
            marks = []
            if branch in ends and end:
                marks.append(Mark(self._drawn(before), ends[branch].perplexity))
            if end:
                trunk = next((stage.train_tokens for stage in self.run.stages if stage.name == branch), 0)
                tokens = self._tokens_before(branch) + trunk + release.train_tokens
                facts = _facts(release, after, tokens, end)
                marks.append(Mark(self._drawn(after), end.perplexity, facts, is_end=True))
            label = f"{self.legend.ladders[self.run.name]}, releases"
            group = self.legend.group(self.run)
            yield Series(f"{release.name} of {self.run.name}", tuple(marks), "release", group, label=label)

    def growths(self) -> Iterator[Rule]:
        """A rule for each growth that has happened."""
        stages, base = self.run.stages, self.run.base
        grown = [stage for before, stage in pairwise(stages) if stage.num_parameters != before.num_parameters]
        if base and base.flops and stages and stages[0].num_parameters > base.num_parameters:
            grown.insert(0, stages[0])
        for stage in grown:
            if stage.train_tokens or stage.loss_after_growth is not None:
                x = self._drawn(self.costs[stage.name][0])
                yield Rule(x, f"grown to {short_count(stage.num_parameters)}", self.legend.group(self.run))

    def end(self) -> Mark:
        """Its end without facts, for a line to pass through."""
        last = self.run.stages[-1]
        return Mark(self._drawn(self.costs[last.name][1]), math.exp(last.validation_loss or math.nan))

    def _cost_at(self, point: EvaluationPoint, stage: StageReport) -> Costs:
        """The cost up to an evaluation, without what is not booked yet: a running stage books its steps in turns."""
        before, after = self.costs[stage.name]
        share = 1.0 if point.point == "final" else 0.0
        if point.step and not share:
            share = point.step / stage.num_steps if stage.num_steps else math.inf
        known = {key: before[key] + share * (after[key] - before[key]) for key in after} if share <= 1.0 else {}
        return known | {"flops": point.cumulative_flops}

    def _drawn(self, cost: Costs) -> dict[str, float]:
        """`cost` on the chart's axes, which are logarithmic: 0 has no place on them."""
        return {key: cost[key] for key in self.keys if cost.get(key, 0.0) > 0.0}

    def _tokens_before(self, stage_name: str) -> int:
        total = 0
        for stage in self.run.stages:
            if stage.name == stage_name:
                break
            total += stage.train_tokens
        return total


def _stage_costs(run: RunReport) -> dict[str, tuple[Costs, Costs]]:
    """What the model had cost before and after each stage and release, by its name."""
    before: Costs = {currency.key: 0.0 for currency in CURRENCIES}
    if run.base:
        bases = {currency.key: currency.of_base(run.base) for currency in CURRENCIES}
        before = {key: cost for key, cost in bases.items() if cost is not None} or {"flops": 0.0}
    found: dict[str, tuple[Costs, Costs]] = {}
    for stage in run.stages:
        found[stage.name] = (before, _after(before, stage))
        before = found[stage.name][1]
    for release in run.releases:
        before = found[release.branch_of][1] if release.branch_of in found else {}
        found[release.name] = (before, _after(before, release))
    return found


def _after(before: Costs, stage: StageReport) -> Costs:
    """The cost of a model after a stage or release, without what is not known."""
    own = {currency.key: currency.of_stage(stage) for currency in CURRENCIES if currency.key in before}
    return {key: before[key] + value for key, value in own.items() if value is not None}


def _known_axes(ends: Sequence[Costs]) -> list[str]:
    """The axes on which each of `ends` is known and something cost more than 0; FLOPs if there is none."""
    known = [key for key in _LABELS if ends and all(key in end for end in ends) and any(end[key] > 0 for end in ends)]
    return known or ["flops"]


def _end(release: StageReport) -> EvaluationPoint | None:
    """The end of a release as a point; None without a finite loss."""
    loss, perplexity = release.validation_loss, release.perplexity
    if loss is None or perplexity is None or not math.isfinite(perplexity):
        return None
    return EvaluationPoint(release.name, "final", release.cumulative_flops, loss, perplexity, release.bits_per_byte)


def _facts(stage: StageReport, cost: Costs, tokens: int, point: EvaluationPoint) -> tuple[tuple[str, str], ...]:
    """The exact figures of an evaluation."""
    facts: dict[str, Any] = {
        "stage": stage.name,
        "measured": _MEASURED[point.point],
        "parameters": f"{stage.num_parameters:,}",
        "FLOPs": exact(point.cumulative_flops),
        "tokens": f"{tokens:,}",
        "loss (nats per token)": f"{point.loss:.4f}",
        "perplexity": f"{point.perplexity:.3f}",
        "bits per byte": f"{point.bits_per_byte:.4f}" if point.bits_per_byte is not None else None,
        **{currency.name: currency.shown(cost[currency.key]) for currency in CURRENCIES[1:] if currency.key in cost},
    }
    return tuple((name, value) for name, value in facts.items() if value is not None)


def _budgets(controls: Sequence[_DrawnRun], legend: Legend) -> Iterator[Series]:
    """Guides through the ends of the controls of one ladder, kind and size: the budgets of one model."""
    curves: dict[tuple[str | None, str], list[_DrawnRun]] = {}
    for each in controls:
        if each.run.final_loss is not None:
            curves.setdefault((each.run.control_of, legend.group(each.run)), []).append(each)
    for (ladder, group), members in curves.items():
        members.sort(key=lambda each: each.run.cumulative_flops)
        if len(members) > 1:
            first = members[0].run
            name = f"{kind_and_size(first)}, budgets for {ladder}"
            marks = tuple(each.end() for each in members)
            yield Series(name, marks, "control", group, label=legend.entry(first), is_guide=True)


def _merged(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """`rules`, with those of one group, label and number of FLOPs as one, in the middle of the seeds."""
    found: dict[tuple[str, str, str], list[Rule]] = {}
    for rule in rules:
        found.setdefault((rule.group, rule.label, scientific(rule.x.get("flops", 0.0))), []).append(rule)
    return tuple(
        Rule({key: sum(rule.x[key] for rule in same) / len(same) for key in same[0].x}, label, group)
        for (group, label, _), same in found.items()
    )


def _summary(runs: Sequence[RunReport]) -> str:
    """What the chart shows, for readers who cannot see it."""
    ladders = sum(run.control is None for run in runs)
    what = f"{counted(ladders, 'ladder')} and {counted(len(runs) - ladders, 'control')}"
    ended = [run for run in runs if run.final_loss is not None]
    if not ended:
        return f"Validation perplexity against cumulative cost, for {what}. No run has a final loss yet."
    best = min(ended, key=lambda run: run.final_loss or math.inf)
    return (
        f"Validation perplexity against cumulative cost, for {what}, of which {len(ended)} have a final loss. "
        f"{best.name} ends lowest, at perplexity {math.exp(best.final_loss or 0.0):.2f} "
        f"for {scientific(best.cumulative_flops)} FLOPs."
    )
