"""What the runs of a report show together: verdicts, sweeps, families, and ladders compared with each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Any

from growctl.analysis.conditions import Difference, differences, measured_alike
from growctl.analysis.costs import FLOPS
from growctl.analysis.family import Family, family, model_arms
from growctl.analysis.groups import Arm, Group, groups, values_text
from growctl.analysis.judge import LADDER, Verdict, alone, judge, verdicts
from growctl.analysis.opponents import Opponent, opponents, scratch_opponent
from growctl.runs.runs import RunReport

MOST_PAIRS = 10
"""With more pairs, each ladder is compared with the best one on its dataset alone."""


@dataclass(frozen=True)
class ArmLosses:
    """The final losses of a ladder, or of one of its controls at one budget, over the seeds."""

    name: str
    """`ladder`, or the end of the control's name."""
    control: str | None
    """Kind of control; None for the ladder."""
    num_parameters: int | None
    flops: float | None
    """The mean cost of the runs that count; None if it is not known."""
    mean: float | None
    """Nats per token; None if no run counts."""
    losses: Mapping[int, float]
    """Of the runs that count, by seed."""
    runs: Mapping[int, str]
    """Their names, by seed."""
    absent: Mapping[int, str]
    """Why the others do not count, by seed."""


@dataclass(frozen=True)
class Ladders:
    """Ladders that differ in nothing but their seed, and their controls."""

    name: str
    seeds: tuple[int, ...]
    values: Mapping[str, Any]
    """The values of the swept keys, or of the keys of --group-by."""
    arms: tuple[ArmLosses, ...]
    """The ladder first."""


@dataclass(frozen=True)
class Sweep:
    """The points of a sweep, or the groups of --group-by."""

    name: str
    keys: tuple[str, ...]
    points: tuple[Ladders, ...]
    best: str | None
    """The point whose ladders have the lowest mean loss; None if none has one, or if the points differ in more than the
    keys."""
    against_next: Verdict | None
    """The best point against the next best."""
    at_edge: tuple[str, ...]
    """The keys whose smallest or largest value the best point has: values beyond it may be better."""


@dataclass(frozen=True)
class Pair:
    """Two ladders, or any two runs, on the same data."""

    first: str
    second: str
    differences: tuple[Difference, ...]
    why_not: str
    """Why their losses cannot be compared; empty if they can."""
    verdict: Verdict | None
    """The first against the curve of the second one's finished models."""


@dataclass(frozen=True)
class Results:
    """What the runs of a report show together. Runs that differ in nothing but their seed are one."""

    headlines: tuple[Verdict, ...]
    """For each ladder, or each sweep, the verdict that decides."""
    verdicts: tuple[Verdict, ...]
    """The others: other opponents of the same ladders, and the points of sweeps."""
    families: tuple[Family, ...]
    sweeps: tuple[Sweep, ...]
    pairs: tuple[Pair, ...]
    """Ladders of different schedules compared with each other, without those of one sweep."""
    ladders: tuple[Ladders, ...]
    """The losses behind all that, by seed."""


def results(runs: Sequence[RunReport], keys: Sequence[str] = ()) -> Results:
    """The results of `runs`. `keys` as in `groups`."""
    found = groups(runs, keys)
    swept = _sweeps(found, keys)
    by_name = {group.name: group for group in found}
    headlines: list[Verdict] = []
    others: list[Verdict] = []
    in_sweep: set[str] = set()
    for sweep in swept:
        if not keys:
            in_sweep |= {point.name for point in sweep.points}
            headlines.append(_sweep_verdict(sweep, [by_name[point.name] for point in sweep.points]))
    for group in found:
        own = verdicts(group)
        if group.name in in_sweep:
            others += own
        else:
            headlines.append(own[0] if own else alone(group))
            others += own[1:]
    headlines += _without_ladder(runs)
    families = [made for group in found if (made := family(group))]
    return Results(
        tuple(headlines),
        tuple(others),
        tuple(families),
        tuple(swept),
        tuple(_pairs(found)),
        tuple(map(_ladders, found)),
    )


def compare(a: Group, b: Group) -> Pair:
    """Two ladders, or single runs, compared at equal loss and at equal cost."""
    differing = tuple(each for each in differences(a.first, b.first) if each.key != "seed")
    pair = Pair(a.name, b.name, differing, measured_alike(a.first, b.first) or "", None)
    if pair.why_not:
        return pair
    models = tuple(model_arms(b))
    unknown = "" if models else f"{b.name} has no finished model"
    verdict = judge([a], Opponent(b.name, LADDER, (models,), unknown=unknown))
    return replace(pair, verdict=verdict)


def _ladders(group: Group) -> Ladders:
    arms = tuple(map(_losses, (group.ladder, *group.controls)))
    return Ladders(group.name, group.seeds, dict(group.values), arms)


def _losses(arm: Arm) -> ArmLosses:
    losses = arm.losses
    return ArmLosses(
        name=arm.name,
        control=arm.control,
        num_parameters=arm.num_parameters,
        flops=arm.mean_cost(FLOPS),
        mean=fmean(losses.values()) if losses else None,
        losses=losses,
        runs={seed: run.name for seed, run in arm.runs.items()},
        absent=dict(arm.absent),
    )


def _without_ladder(runs: Sequence[RunReport]) -> list[Verdict]:
    """What there is to say of controls whose ladder is not among `runs`."""
    ladders = {run.name for run in runs if run.control is None}
    missing = dict.fromkeys(run.control_of for run in runs if run.control_of and run.control_of not in ladders)
    return [
        Verdict(name, "", "", "unknown", f"Not known: ladder {name} is not here, only controls of it.")
        for name in missing
    ]


def _sweeps(found: Sequence[Group], keys: Sequence[str]) -> list[Sweep]:
    if keys:
        return [_sweep(f"By {', '.join(keys)}", tuple(keys), found)] if found else []
    sets: dict[str, list[Group]] = {}
    for group in found:
        if group.first.group is not None and group.first.swept:
            sets.setdefault(group.first.group, []).append(group)
    return [
        _sweep(name, tuple(dict.fromkeys(key for group in points for key in group.values)), points)
        for name, points in sets.items()
        if len(points) > 1
    ]


def _sweep(name: str, keys: tuple[str, ...], points: Sequence[Group]) -> Sweep:
    is_grid = len({values_text(point.values) for point in points}) == len(points)
    alike = not any(measured_alike(points[0].first, point.first) for point in points)
    ended = [point for point in points if point.ladder.losses and not point.ladder.diverged]
    if not ended or not is_grid or not alike:
        return Sweep(name, keys, tuple(map(_ladders, points)), None, None, ())
    best, *others = sorted(ended, key=lambda point: fmean(point.ladder.losses.values()))
    after = judge([best], Opponent(others[0].name, LADDER, ((others[0].ladder,),))) if others else None
    edges = []
    for key in keys:
        grid = [value for point in points if isinstance(value := point.values.get(key), int | float)]
        if len(grid) == len(points) and len(set(grid)) > 1 and best.values[key] in (min(grid), max(grid)):
            edges.append(key)
    return Sweep(name, keys, tuple(map(_ladders, points)), best.name, after, tuple(edges))


def _sweep_verdict(sweep: Sweep, points: Sequence[Group]) -> Verdict:
    """The verdict on the best point of a sweep, corrected for having chosen it, against the controls of every point: so
    an opponent is tuned as hard as the ladder. Settings that diverged count for neither side, unless a size of the
    opponent's has no other."""
    best = next((point for point in points if point.name == sweep.best), None)
    if best is None:
        why = f"no point of {len(points)} has a final loss with every seed"
        return Verdict(sweep.name, "", "", "unknown", f"Not known: {why}.")
    against = [opponent for point in points if (opponent := scratch_opponent(point))]
    if not against:
        return next(iter(verdicts(best)), alone(best))
    ended = [point for point in points if point.ladder.losses]
    everywhere = [curve for opponent in against for curve in opponent.curves]
    sound = [curve for curve in everywhere if not any(arm.diverged for arm in curve)]
    sizes = {curve[0].num_parameters for curve in sound}
    curves = tuple(curve for curve in everywhere if curve in sound or curve[0].num_parameters not in sizes)
    own = next((opponent for opponent in opponents(best) if opponent.kind == against[0].kind), against[0])
    verdict = judge(ended, replace(own, curves=curves), ended.index(best))
    mine, its = verdict.ladder_side, verdict.opponent_side
    is_weaker = len(against) < len(points) and not (mine and its and mine.settings_tried <= its.settings_tried)
    weaker = f"Controls were trained at {len(against)} of {len(points)} points: the ladder was tuned harder."
    num_diverged = len(everywhere) - len(curves)
    left_out = f"Of {len(everywhere)} curves of the opponent, {num_diverged} diverged and do not count."
    cautions = [*([weaker] if is_weaker else []), *([left_out] if num_diverged else []), *verdict.cautions]
    return replace(verdict, cautions=tuple(cautions))


def _pairs(found: Sequence[Group]) -> list[Pair]:
    ended = [group for group in found if group.ladder.losses]
    pairs = [(a, b) for a, b in combinations(ended, 2) if a.first.group is None or a.first.group != b.first.group]
    if len(pairs) > MOST_PAIRS:
        ordered = sorted(ended, key=lambda group: fmean(group.ladder.losses.values()), reverse=True)
        best = {group.first.dataset_fingerprint: group.name for group in ordered}.values()
        pairs = [(a, b) for a, b in pairs if not measured_alike(a.first, b.first) and {a.name, b.name} & {*best}]
    return [_better_told(compare(a, b), compare(b, a)) for a, b in pairs]


def _better_told(pair: Pair, turned: Pair) -> Pair:
    """The pair in the order in which the second one's curve reaches the loss of the first, if there is one."""
    known = [each.verdict and each.verdict.multiplier and each.verdict.multiplier.estimate for each in (pair, turned)]
    return turned if known[0] is None and known[1] is not None else pair
