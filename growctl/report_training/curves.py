"""The training of a run as curves: its log lines, placed on the axes that all its charts share."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from growctl.analysis.runs import RunReport, StageReport
from growctl.report.chart import Axis, Mark, Role, Rule, Series, share_of_marks, thinned
from growctl.report.recorded import Recorded, recorded
from growctl.seeds.legend import Legend
from growctl.text.formatting import short_count

AXES = (Axis("tokens", "data tokens"), Axis("flops", "training FLOPs"))
"""The x axes: what the run, and its start checkpoint, had spent."""


@dataclass(frozen=True)
class StageLines:
    """The log lines of a stage or of a release, with its place in the run."""

    part: StageReport
    recorded: Recorded
    first_tokens: int
    """Data tokens of the run before it."""
    first_flops: float
    """Training FLOPs before it, with those of the start checkpoint."""

    def place(self, step: float) -> dict[str, float]:
        """The place after `step` steps of it, on each of AXES."""
        return {
            "tokens": self.first_tokens + step * self.part.tokens_per_step,
            "flops": self.first_flops + step * self.part.step_flops,
        }


@dataclass(frozen=True)
class RunLines:
    """The log lines of a run."""

    run: RunReport
    entry: str
    """Its entry in the legend, which seeds share."""
    group: str
    """What shares its colour: the seeds of one ladder, or the controls of one kind and size."""
    stages: tuple[StageLines, ...]
    releases: tuple[StageLines, ...]

    @property
    def role(self) -> Role:
        """How charts draw it."""
        return "control" if self.run.control else "ladder"

    @property
    def is_recorded(self) -> bool:
        """Whether it has any log lines."""
        return any(lines.recorded.step for lines in (*self.stages, *self.releases))


def run_lines(run: RunReport, legend: Legend) -> RunLines:
    """The log lines of a run's stages and releases. `legend`: that of all runs of the report."""
    stages: list[StageLines] = []
    releases: list[StageLines] = []
    tokens = 0
    released = {release.branch_of: release for release in run.releases}
    for stage in run.stages:
        stages.append(StageLines(stage, recorded(run, stage), tokens, stage.cumulative_flops - stage.flops))
        tokens += stage.train_tokens
        if release := released.get(stage.name):
            first_flops = release.cumulative_flops - release.flops
            releases.append(StageLines(release, recorded(run, release), tokens, first_flops))
    return RunLines(run, legend.entry(run), legend.group(run), tuple(stages), tuple(releases))


def mfu_of(part: StageReport, lines: Recorded) -> list[float]:
    """Of each log line, the share of the devices' peak speed that its steps reached; NaN if the peak is not known."""
    flops_per_token = part.step_flops / max(1, part.tokens_per_step)
    pairs = zip(lines.tokens_per_second, lines.peak_flops, strict=True)
    return [speed * flops_per_token / peak for speed, peak in pairs]


def curve(
    stages: Sequence[StageLines],
    figures: Callable[[StageLines], Sequence[float]],
    most: int,
    shown: Callable[[float], str] = "{:.4g}".format,
    *,
    positive: bool = False,
) -> tuple[Mark, ...]:
    """One figure of the log lines of some stages as marks, thinned to `most`.

    `shown`: the figure as text. `positive`: leaves out figures that a logarithmic axis has no place for.
    """
    values: list[float] = []
    owners: list[tuple[int, StageLines]] = []
    for lines in stages:
        owners.append((len(values), lines))
        values.extend(figures(lines))
    if positive:
        values = [value if value > 0 else math.nan for value in values]
    return tuple(_marks(values, owners, thinned(values, most), shown))


def _marks(
    values: Sequence[float],
    owners: Sequence[tuple[int, StageLines]],
    places: Sequence[int],
    shown: Callable[[float], str],
) -> Iterator[Mark]:
    owner = 0
    for place in places:
        while owner + 1 < len(owners) and owners[owner + 1][0] <= place:
            owner += 1
        first, lines = owners[owner]
        step = lines.recorded.step[place - first]
        facts = (("value", shown(values[place])), ("step", f"{step:,} of {lines.part.name}"))
        yield Mark(lines.place(step), values[place], facts)


def over_runs(
    runs: Sequence[RunLines],
    figures: Callable[[StageLines], Sequence[float]],
    shown: Callable[[float], str] = "{:.4g}".format,
    *,
    positive: bool = False,
) -> tuple[Series, ...]:
    """A series for each run, and one for each of its releases; none for runs without the figure.

    Of runs that share an entry in the legend and have the same curve, such as seeds with one learning rate, the first
    stands for all.
    """
    wanted = [(lines.run.name, lines.role, lines, lines.stages, "") for lines in runs]
    wanted += [
        (f"{lines.run.name}, {release.part.name}", "release", lines, (release,), ", releases")
        for lines in runs
        for release in lines.releases
    ]
    most = share_of_marks(len(wanted))
    found: dict[tuple[str, tuple[tuple[float, float], ...]], Series] = {}
    for name, role, lines, stages, what in wanted:
        marks = _with_end(curve(stages, figures, most, shown, positive=positive))
        entry = f"{lines.entry}{what}"
        found.setdefault((entry, _places(marks)), Series(name, marks, role, lines.group, label=entry))
    return tuple(series for series in found.values() if series.marks)


def _with_end(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    """The same with a large mark at the end, whose shape tells lines apart without their colour."""
    return (*marks[:-1], replace(marks[-1], is_end=True)) if marks else ()


def _places(marks: Sequence[Mark]) -> tuple[tuple[float, float], ...]:
    return tuple((mark.x["tokens"], mark.y) for mark in marks)


def growth_rules(runs: Sequence[RunLines]) -> tuple[Rule, ...]:
    """A line at each growth of the runs; runs that grow at the same place share it."""
    rules: dict[tuple[str, float], Rule] = {}
    for lines in runs:
        for stage in lines.stages:
            if stage.part.loss_after_growth is not None:
                label = f"grown to {short_count(stage.part.num_parameters)}"
                rule = Rule(stage.place(0), label, lines.group)
                rules.setdefault((label, stage.first_tokens), rule)
    return tuple(rules.values())
