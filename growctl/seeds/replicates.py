"""Final losses and savings over the seeds of a ladder and its controls: means, each seed, intervals.

A seed counts in a comparison if its ladder and every control of the comparison have a final loss. The others are named.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import fmean

from growctl.analysis.runs import RunReport
from growctl.runs_dir import CONTROL_INFIX
from growctl.seeds.grouping import Member, Replicates, recipe
from growctl.seeds.statistics import Difference, Interval, bootstrap, difference, group, mean_interval
from growctl.verdicts.compare import (
    BEST_SCRATCH,
    Point,
    at_equal_flops,
    compare,
    flops_to_loss,
    lower_envelope,
    reason_not_to_count,
    slack,
)
from growctl.verdicts.verdict import cautions

LADDER = "ladder"
"""The name of the arm that is no control."""

UNFINISHED = "not finished"
"""Why a run does not count, unless it is known whether it is running."""

DIVERGED = "diverged"
"""Why a finished run without a finite loss does not count."""

_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class SeedResult:
    """How the run of one seed ended."""

    seed: int
    run: str | None
    """None if there is no such run."""
    loss: float | None
    """Nats per token; None if it does not count."""
    flops: float | None
    """Training FLOPs so far; None without a run."""
    why: str | None
    """Why it does not count, such as `not finished`; None if it does."""


@dataclass(frozen=True)
class Arm:
    """A ladder, or one of its controls at one budget, with every seed."""

    name: str
    """`ladder`, or the end of the control's name, such as `tokenformer-scratch-0.5x`."""
    control: str | None
    """Kind of control; None for the ladder."""
    num_parameters: int | None
    flops: float | None
    """The mean of the seeds that count; None without any."""
    mean: float | None
    """Nats per token, over the seeds that count."""
    interval: Interval | None
    """The 95 % t interval of the mean; None for fewer than two seeds."""
    results: tuple[SeedResult, ...]

    @property
    def losses(self) -> dict[int, float]:
        """The final losses that count, by seed."""
        return {result.seed: result.loss for result in self.results if result.loss is not None}


@dataclass(frozen=True)
class LossDifference:
    """A ladder against the best control of about its FLOPs, over seeds."""

    control: str
    """The name of the arm."""
    flops_ratio: float
    """The control's FLOPs / the ladder's."""
    difference: Difference
    """Ladder minus control, in nats per token; positive if growing lost."""


@dataclass(frozen=True)
class Saving:
    """What a ladder saved at equal loss, over seeds."""

    saving: float | None
    """FLOPs that the controls need for the ladder's mean loss / the ladder's, off the curve of the mean losses; None if
    the controls do not bracket that loss."""
    interval: Interval | None
    """95 %. None for one seed, and if some draw of the seeds has no saving."""
    by_seed: dict[int, float | None]
    """The saving of each seed alone; None if its own controls do not bracket its loss."""
    at_least: float | None
    """If no control reached the loss: the FLOPs of the best / the ladder's."""
    at_most: float | None
    """If every control reached the loss: the FLOPs of the cheapest / the ladder's."""
    edge: LossDifference | None = None
    """If the controls do not bracket the loss: the ladder against the control that `at_least` or `at_most` is of."""

    @property
    def within_noise(self) -> bool | None:
        """Whether seeds alone may explain it; None if the noise is not known."""
        return None if self.interval is None else 1.0 in self.interval


@dataclass(frozen=True)
class SeedComparison:
    """A ladder against its controls of one kind, over the seeds."""

    control: str
    num_parameters: int | None
    """None for `best-scratch`, which compares with every size of the ladder."""
    seeds: tuple[int, ...]
    """The seeds that count at equal loss."""
    left_out: tuple[str, ...]
    """Controls that are left out, because most seeds do not have them."""
    missing_sizes: tuple[int, ...]
    """The sizes of the ladder without a control that counts, where the best of all sizes is to be compared."""
    cautions: tuple[str, ...]
    """What may make the result worth less, of every seed."""
    at_equal_flops: LossDifference | None
    at_equal_loss: Saving | None
    """None if no seed counts, or a size is missing."""


@dataclass(frozen=True)
class SeedFigures:
    """The figures of ladders that differ in nothing but their seed."""

    name: str
    seeds: tuple[int, ...]
    arms: tuple[Arm, ...]
    """The ladder first, then its controls by FLOPs."""
    comparisons: tuple[SeedComparison, ...]
    repeated: tuple[str, ...]
    """Ladders that repeat a seed and do not count again, one sentence each."""
    unknown_start: bool = False
    """Whether they begin with a checkpoint whose cost is not known, and so not counted."""


def seed_figures(group: Replicates) -> SeedFigures:
    """The figures of `group`."""
    arms = {LADDER: _ladder_arm(group.members), **_control_arms(group.members)}
    found: dict[tuple[str, int | None], dict[str, dict[int, Point]]] = {}
    warned: dict[tuple[str, int | None], dict[str, None]] = {}
    for member in group.members:
        labels = {run.name: _key(run) for run in member.controls}
        for comparison in compare(member.ladder, member.controls):
            kind = comparison.control, comparison.num_parameters
            points = found.setdefault(kind, {})
            if comparison.points:
                warned.setdefault(kind, {}).update(dict.fromkeys(_unnamed(cautions(comparison), member.controls)))
            for point in comparison.points:
                points.setdefault(labels[point.run], {})[member.seed] = point
    ladders = {m.seed: m.ladder for m in group.members if m.ladder.final_loss is not None}
    comparisons = [
        _Curves(group.first, ladders, points, arms, tuple(warned.get(kind, ()))).comparison(*kind)
        for kind, points in found.items()
    ]
    ordered = sorted(arms.values(), key=lambda arm: (arm.control is not None, arm.flops or math.inf, arm.name))
    comparisons.sort(key=lambda found: (found.control, found.num_parameters or 0))
    unknown_start = group.first.base is not None and group.first.base.flops is None
    return SeedFigures(group.name, group.seeds, tuple(ordered), tuple(comparisons), group.repeated, unknown_start)


def saving_interval(seeds: Sequence[int], saving: Callable[[Sequence[int]], float | None]) -> Interval | None:
    """The 95 % interval of a saving over `seeds`; None for one seed, and if some draw of the seeds has no saving.

    A bootstrap that draws a seed's ladder and controls together. It never leaves the range of the seeds, which is too
    narrow: of three seeds it covers the truth three times in four, of ten nine times in ten. So the interval also
    covers the t interval of the logarithms of the savings of the seeds.
    """
    drawn = bootstrap(seeds, saving)
    own = [saving([seed]) for seed in seeds]
    known = [math.log(value) for value in own if value]
    spread = mean_interval(known) if len(known) == len(own) else None
    if drawn is None or spread is None:
        return None
    return Interval(min(drawn.low, _exp(spread.low)), max(drawn.high, _exp(spread.high)))


def label(control: str) -> str:
    """What a control's name says beside its ladder's: kind, stage and budget."""
    return control.partition(CONTROL_INFIX)[2] or control


def _exp(value: float) -> float:
    return math.exp(max(-_LARGEST_EXPONENT, min(_LARGEST_EXPONENT, value)))


def _key(control: RunReport) -> str:
    """Equal for controls of different seeds that are otherwise alike."""
    return f"{label(control.recorded_name)} {recipe(control, with_steps=False)}"


def _unnamed(sentences: Sequence[str], controls: Sequence[RunReport]) -> list[str]:
    """`sentences` with the arms of the controls in place of their names, so that seeds say the same once."""
    names = sorted((control.name for control in controls), key=len, reverse=True)
    return [reduce(lambda text, name: text.replace(name, label(name)), names, sentence) for sentence in sentences]


def _ladder_arm(members: Sequence[Member]) -> Arm:
    results = [_result(member.ladder, member.seed, _why_no_loss(member.ladder)) for member in members]
    return _arm(
        LADDER, None, members[0].ladder.stages[-1].num_parameters if members[0].ladder.stages else None, results
    )


def _control_arms(members: Sequence[Member]) -> dict[str, Arm]:
    """The controls, by `_key`; those that no seed has begun, by name."""
    known: dict[str, dict[int, RunReport]] = {}
    for member in members:
        for control in member.controls:
            known.setdefault(_key(control), {})[member.seed] = control
    arms = {}
    for key, by_seed in known.items():
        first = next(iter(by_seed.values()))
        name = label(first.recorded_name)
        results = [
            _result(run, member.seed, _why_not(member.ladder, run, _state_to_come(member.ladder, name)))
            if (run := by_seed.get(member.seed))
            else SeedResult(member.seed, None, None, None, _state_to_come(member.ladder, name) or "no such run")
            for member in members
        ]
        arms[key] = _arm(name, first.control, first.stages[-1].num_parameters, results)
    begun = {arm.name for arm in arms.values()}
    for member in members:
        for planned in member.ladder.controls_to_come:
            name = label(planned.name)
            if name not in begun and name not in arms:
                states = [(m.seed, _state_to_come(m.ladder, name) or "no such run") for m in members]
                results = [SeedResult(seed, None, None, None, state) for seed, state in states]
                arms[name] = _arm(name, planned.kind, planned.num_parameters, results)
    return arms


def _state_to_come(ladder: RunReport, name: str) -> str | None:
    return next((planned.state for planned in ladder.controls_to_come if label(planned.name) == name), None)


def _why_no_loss(run: RunReport) -> str | None:
    if run.final_loss is not None:
        return None
    return DIVERGED if run.finished else UNFINISHED


def _why_not(ladder: RunReport, control: RunReport, state: str | None) -> str | None:
    why = _why_no_loss(control)
    return (state or why if why == UNFINISHED else why) or reason_not_to_count(ladder, control)


def _result(run: RunReport, seed: int, why: str | None) -> SeedResult:
    return SeedResult(seed, run.name, None if why else run.final_loss, run.cumulative_flops, why)


def _arm(name: str, control: str | None, num_parameters: int | None, results: Sequence[SeedResult]) -> Arm:
    losses = {result.seed: result.loss for result in results if result.loss is not None}
    flops = [result.flops for result in results if result.loss is not None and result.flops is not None]
    mean = group(losses) if losses else None
    return Arm(
        *(name, control, num_parameters, fmean(flops) if flops else None),
        *(mean.mean if mean else None, mean.interval if mean else None, tuple(results)),
    )


@dataclass(frozen=True)
class _Curves:
    """What a comparison over seeds is computed from."""

    first: RunReport
    ladders: Mapping[int, RunReport]
    """The finished ladders, by seed."""
    points: Mapping[str, Mapping[int, Point]]
    """The controls that count, by arm and seed."""
    arms: Mapping[str, Arm]
    cautions: tuple[str, ...]
    """The cautions of the comparison, of every seed."""

    def comparison(self, control: str, num_parameters: int | None) -> SeedComparison:
        kept = self._kept(control)
        seeds = self._complete(kept)
        sizes = {point.num_parameters for key in kept for point in self.points[key].values()}
        ladder_sizes = [stage.num_parameters for stage in self.first.stages] if control == BEST_SCRATCH else []
        missing_sizes = tuple(size for size in ladder_sizes if size not in sizes)
        is_known = bool(seeds) and not missing_sizes and self._costs_known(kept, seeds)
        return SeedComparison(
            *(control, num_parameters, tuple(seeds)),
            left_out=tuple(sorted(self.arms[key].name for key in self.points if key not in kept)),
            missing_sizes=missing_sizes,
            cautions=self.cautions,
            at_equal_flops=None if missing_sizes else self._at_equal_flops(kept),
            at_equal_loss=self._saving(kept, seeds) if is_known else None,
        )

    def _kept(self, control: str) -> list[str]:
        """The arms to compare with: an arm that few seeds have yet would leave out the other seeds.

        The best of all sizes needs its sizes, though.
        """
        often = {key: len(self.ladders.keys() & by_seed.keys()) for key, by_seed in self.points.items()}
        most = max(often.values(), default=0)
        there = [key for key, number in often.items() if number]
        kept = [key for key in there if 2 * often[key] >= most]
        if control == BEST_SCRATCH and self._sizes(kept) != self._sizes(there):
            return there
        return kept

    def _sizes(self, keys: Sequence[str]) -> set[int]:
        return {point.num_parameters for key in keys for point in self.points[key].values()}

    def _complete(self, keys: Sequence[str]) -> list[int]:
        """The seeds with a finished ladder that all of these arms have; none without arms."""
        return [seed for seed in sorted(self.ladders) if keys and all(seed in self.points[key] for key in keys)]

    def _mean_points(self, keys: Sequence[str], seeds: Sequence[int]) -> list[Point]:
        """Each arm's mean over `seeds`, which may hold a seed twice; `run` is the arm's key."""
        found = []
        for key in keys:
            points = [self.points[key][seed] for seed in seeds]
            flops, loss = (fmean(getattr(point, name) for point in points) for name in ("flops", "loss"))
            step_flops = max(point.step_flops for point in points)
            found.append(Point(key, points[0].num_parameters, flops, loss, step_flops))
        return found

    def _ladder(self, seeds: Sequence[int]) -> tuple[float, float]:
        """The ladder's mean FLOPs and loss."""
        ladders = [self.ladders[seed] for seed in seeds]
        return fmean(run.cumulative_flops for run in ladders), fmean(run.final_loss or 0.0 for run in ladders)

    def _costs_known(self, keys: Sequence[str], seeds: Sequence[int]) -> bool:
        """Whether the ladder and a control cost anything: no ratio is of nothing."""
        return self._ladder(seeds)[0] > 0 and bool(lower_envelope(self._mean_points(keys, seeds)))

    def _at_equal_flops(self, kept: Sequence[str]) -> LossDifference | None:
        """The ladder against the best affordable arm, by the mean losses of the seeds that have all such arms."""
        affordable = []
        for key in kept:
            seeds = sorted(self.ladders.keys() & self.points[key].keys())
            [point], (flops, _) = self._mean_points([key], seeds), self._ladder(seeds)
            if point.flops <= flops + slack(point, flops):
                affordable.append(key)
        seeds = self._complete(affordable)
        if not seeds or not self._costs_known(affordable, seeds):
            return None
        equal = at_equal_flops(*self._ladder(seeds), self._mean_points(affordable, seeds))
        return self._difference(equal.control_run, seeds) if equal else None

    def _difference(self, key: str, seeds: Sequence[int]) -> LossDifference:
        """The ladder against one arm, over `seeds`."""
        [point], (flops, _) = self._mean_points([key], seeds), self._ladder(seeds)
        losses = {seed: self.ladders[seed].final_loss or 0.0 for seed in seeds}
        theirs = {seed: self.points[key][seed].loss for seed in seeds}
        return LossDifference(self.arms[key].name, point.flops / flops, difference(losses, theirs))

    def _saving(self, kept: Sequence[str], seeds: Sequence[int]) -> Saving:
        def saving(drawn: Sequence[int]) -> float | None:
            flops, loss = self._ladder(drawn)
            equal = flops_to_loss(self._mean_points(kept, drawn), loss)
            return equal.flops / flops if equal and equal.bracketed and flops else None

        envelope, value = lower_envelope(self._mean_points(kept, seeds)), saving(seeds)
        by_seed = {seed: saving([seed]) for seed in seeds}
        if value is not None:
            return Saving(value, saving_interval(seeds, saving), by_seed, at_least=None, at_most=None)
        is_reached = envelope[-1].loss <= self._ladder(seeds)[1]
        edge = self._difference(envelope[0 if is_reached else -1].run, seeds)
        at_least, at_most = (None, edge.flops_ratio) if is_reached else (edge.flops_ratio, None)
        return Saving(None, None, by_seed, at_least=at_least, at_most=at_most, edge=edge)
