"""The verdicts: what a ladder saved against its opponents, with intervals, cautions, and what is not known.

The only place that compares. Report, page, JSON, `compare`, sweeps and model cards show these records.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import truediv
from pathlib import Path
from statistics import fmean

from growctl.analysis import statistics
from growctl.analysis.conditions import BEST_SCRATCH, PEAK, UNGROWN, grows_nothing, same_machines
from growctl.analysis.costs import CURRENCIES, FLOPS, WALL_HOURS, Currency
from growctl.analysis.groups import Arm, Group, peak, seeds_text
from growctl.analysis.opponents import Opponent, from_scratch_kinds, opponents
from growctl.analysis.statistics import Multiplier, Outcome
from growctl.ledger.entries import BaseEntry
from growctl.runs.runs import RunReport
from growctl.runs_dir import RunPaths
from growctl.text.formatting import scientific
from stages.counted import counted

FEWEST_BUDGETS = 3
"""With fewer budgets, no power law can be read off a curve of controls."""

LADDER = "ladder"
"""The kind of opponent that is another ladder."""

STRONGEST = "The strongest opponent is missing"
"""How `Verdict.missing` begins where that is what is missing."""
MORE_BUDGETS = "What the same loss costs without growing is unknown: train more budgets."
ONE_SEED = "`growctl run SCHEDULE --seeds 0,1,2` trains more seeds, each with its controls."

_STRONGEST = {BEST_SCRATCH: "the best size from scratch", UNGROWN: "training the start checkpoint further"}


@dataclass(frozen=True)
class Side:
    """What one side of a comparison spent: the ladder, or the run of the opponent that decides."""

    name: str
    num_parameters: int | None
    costs: Mapping[str, float]
    """By the key of the currency, for those in which it is known: without evaluations' FLOPs, and without work
    repeated after interruptions."""
    train_tokens: float | None
    """Data tokens that the model has read, those of a start checkpoint too; None if these are not known."""
    epochs: float | None
    """How often it has read the training text; None as above, or if the size of the text is not recorded."""
    evaluation_flops: float
    """Not counted in `flops`."""
    replayed_flops: float
    """Not counted in `flops`: repeated after interruptions from outside."""
    rolled_back_flops: float
    """Counted in `flops`: given up after anomalies of its own training."""
    settings_tried: int
    """Different settings of the swept keys; 1 if nobody tuned it."""


@dataclass(frozen=True)
class Verdict:
    """A ladder against one opponent."""

    ladder: str
    """The ladder's name, or that of its seeds."""
    opponent: str
    """Such as `training the best size from scratch`."""
    kind: str
    """The kind of the controls."""
    outcome: Outcome
    claim: str
    """The result in a sentence or two, or why it is not known."""
    question: str = ""
    """The question that it answers, and from where on costs count."""
    missing: str = ""
    """What to train first, in a sentence; empty if nothing is missing."""
    command: str = ""
    """The command that trains it."""
    seeds: tuple[int, ...] = ()
    """Those that count."""
    multiplier: Multiplier | None = None
    """FLOPs that the opponent needs for the ladder's loss / the ladder's; None if nothing can be compared."""
    other_costs: Mapping[str, Multiplier] = field(default_factory=dict)
    """The same in wall-clock time, device time, money and energy, by the key of the currency."""
    other_costs_unknown: str = ""
    """Why there are none; empty if there are some."""
    flops_ratio: float | None = None
    """FLOPs of the opponent's run that decides / the ladder's: of the nearest in cost; of the dearest if none reached
    the ladder's loss, of the cheapest if all did."""
    detectable_nats: float | None = None
    """The smallest difference in loss that these seeds would have shown four times in five."""
    ladder_side: Side | None = None
    opponent_side: Side | None = None
    cautions: tuple[str, ...] = ()
    """What may make the result worth less, one sentence each, the most important first."""


def verdicts(group: Group) -> list[Verdict]:
    """The verdicts on the ladders of `group`, the one that decides first."""
    return [judge([group], opponent) for opponent in opponents(group)]


def judge(candidates: Sequence[Group], opponent: Opponent, which: int = 0) -> Verdict:
    """The verdict on the ladders of `candidates[which]`, which was chosen from all of them, against `opponent`."""
    group = candidates[which]
    strongest = _strongest(group)
    question = "" if opponent.kind == LADDER else _question(group.first)
    unknown = Verdict(group.name, opponent.name, opponent.kind, "unknown", "", question)
    if not opponent.is_strictest:
        unknown = replace(unknown, missing=_is_missing(strongest), command=training_command(candidates, strongest))
    needed = opponent.needed_by(group.ladder)
    needless = "at a budget that the comparison does not need, and does not count."
    diverged = (f"{_divergence(arm, arm.name)}, {needless}" for arm in opponent.arms if arm not in needed.arms)
    cautions = (*_cautions(group, opponent), *diverged)
    is_control, opponent = any(arm.control for arm in opponent.arms), needed
    if why := _why_unknown(group, opponent):
        return replace(unknown, claim=f"Not known: {why}.", cautions=cautions)
    counting = [curve for arms in opponent.curves if (curve := [arm for arm in arms if arm.losses])]
    test = _test(candidates, counting, which, FLOPS)
    if test is None or test.curve is None:
        return replace(unknown, claim="Not known: nothing was spent.", cautions=cautions)
    if opponent.unknown and test.outcome != "lost":
        return replace(unknown, claim=f"Not known: {opponent.unknown}.", cautions=cautions)
    others, why_no_others = _other_costs(group, counting)
    deciding = _deciding(group, counting[test.curve], test.multiplier.kind)
    verdict = replace(
        unknown,
        outcome=test.outcome,
        seeds=test.seeds,
        multiplier=test.multiplier,
        other_costs=others,
        other_costs_unknown=why_no_others,
        flops_ratio=deciding.flops / group.ladder.flops if group.ladder.flops else None,
        detectable_nats=test.detectable,
        ladder_side=_side(group.ladder, group.name, [each.ladder for each in candidates]),
        opponent_side=_side(deciding, deciding.name if is_control else opponent.name, _alike(deciding, opponent.arms)),
        cautions=(
            *([ONE_SEED] if is_control and len(test.seeds) == 1 else []),
            *(_curve_cautions(counting[test.curve]) if is_control else ()),
            *cautions,
        ),
    )
    without_growth = (*from_scratch_kinds(group.first), UNGROWN)
    if opponent.is_strictest and opponent.kind in without_growth and test.multiplier.estimate is None:
        kind = UNGROWN if opponent.kind == UNGROWN else BEST_SCRATCH
        command = training_command(candidates, kind, [next_budget(verdict)])
        verdict = replace(verdict, missing=MORE_BUDGETS, command=command)
    return replace(verdict, claim=_claim(verdict, "" if opponent.is_strictest else _STRONGEST[strongest]))


def alone(group: Group) -> Verdict:
    """The verdict on a ladder without controls."""
    state = "; ".join(dict.fromkeys(group.ladder.absent.values()))
    what = "no control of its whole cost" if group.controls else "no controls"
    why = f"{group.name} is {state}" if state and not group.ladder.runs else f"it has {what} to compare it with"
    claim, kind = f"Not known: {why}.", _strongest(group)
    verdict = Verdict(group.name, "", "", "unknown", claim, _question(group.first), cautions=group.notes)
    return replace(verdict, missing=_is_missing(kind), command=training_command([group], kind))


def _question(ladder: RunReport) -> str:
    if ladder.base is None:
        return "To someone who has no model yet, is growing worth it?"
    return f"To someone who has the start checkpoint, is growing it worth it? {_paid(ladder.base)}"


def _paid(base: BaseEntry) -> str:
    cost = f" ({scientific(base.flops)} FLOPs)" if base.flops else ""
    return f"Costs count from now on: what it cost{cost} is paid for."


def _strongest(group: Group) -> str:
    """The kind of control that is the strongest opponent."""
    return UNGROWN if group.first.base else BEST_SCRATCH


def next_budget(verdict: Verdict) -> float:
    """The budget to train next where those of `verdict` do not bracket the ladder's loss."""
    is_low = verdict.multiplier and verdict.multiplier.kind == "not bracketed"
    return (verdict.flops_ratio or 1.0) * (0.5 if is_low else 2.0)


def training_command(groups: Sequence[Group], kind: str, more: Iterable[float] = ()) -> str:
    """The command that trains controls of `kind` beside the ladders of `groups`, for usual budgets and `more`.

    Empty if one of them was imported: its schedule and its data are elsewhere.
    """
    budgets = ", ".join(f"{each:g}" for each in sorted({0.5, 1.0, 2.0, *(float(f"{budget:.2g}") for budget in more)}))
    ladders = [run for group in groups for run in group.ladder.runs.values() or [group.first]]
    if any(RunPaths(run.directory).imported.exists() for run in ladders):
        return ""
    runs_dir = ladders[0].directory.parent
    where = [] if runs_dir == Path("runs") else ["--runs-dir", str(runs_dir)]
    asked = shlex.join([f"controls=[{{kind: {kind}, budgets: [{budgets}]}}]", "--controls", *where])
    schedules = shlex.join(str(RunPaths(run.directory).schedule) for run in ladders)
    if len(ladders) == 1:
        return f"growctl run {schedules} {asked}"
    return f'for schedule in {schedules}; do growctl run "$schedule" {asked}; done'


def _is_missing(kind: str) -> str:
    return f"{STRONGEST}: {_STRONGEST[kind]}."


def interval_text(low: float | None, high: float | None) -> str:
    """`1.14x to 1.80x`, `above 1.14x`, `below 1.80x`, or empty."""
    if low is None:
        return "" if high is None else f"below {high:.2f}x"
    return f"above {low:.2f}x" if high is None else f"{low:.2f}x to {high:.2f}x"


def multiplier_text(multiplier: Multiplier | None) -> str:
    """`1.44x (1.14x to 1.80x)`; `at most 1.44x` off a chord; why it is not known."""
    if multiplier is None:
        return "-"
    interval = interval_text(multiplier.low, multiplier.high)
    if multiplier.estimate is None:
        return interval or multiplier.kind
    return _estimate_text(multiplier) + (f" ({interval})" if interval else "")


def _estimate_text(multiplier: Multiplier) -> str:
    return f"{'at most ' * (multiplier.kind == 'chord')}{multiplier.estimate:.2f}x"


def _why_unknown(group: Group, opponent: Opponent) -> str:
    """Why there is no verdict yet; empty if there can be one."""
    if group.ladder.diverged:
        return f"the ladder diverged with {counted(len(group.ladder.diverged), 'seed')} of {len(group.seeds)}"
    if not group.ladder.losses:
        return f"{group.name} is {'; '.join(dict.fromkeys(group.ladder.absent.values()))}"
    for arm in opponent.arms:
        if arm.diverged:
            return _divergence(arm, arm.name if arm.control else opponent.name)
    if not any(arm.losses for arm in opponent.arms):
        if opponent.unknown:
            return opponent.unknown
        whys = (f"{arm.name} ({'; '.join(dict.fromkeys(arm.absent.values()))})" for arm in opponent.arms)
        return f"no control counts: {', '.join(whys)}"
    return ""


def _test(
    candidates: Sequence[Group], curves: Sequence[Sequence[Arm]], which: int, currency: Currency
) -> statistics.Test | None:
    """The test of `candidates[which]` against the best of `curves`, in a currency; None if a cost is not known."""
    ladders = [_measured(group.ladder, currency) for group in candidates if group.ladder.losses]
    theirs = [[_measured(arm, currency) for arm in curve] for curve in curves if curve]
    own = _measured(candidates[which].ladder, currency)
    known = [[arm for arm in curve if arm] for curve in theirs]
    if own is None or any(len(some) < len(all_) for some, all_ in zip(known, theirs, strict=True)) or not known:
        return None
    tried = [own, *(ladder for ladder in ladders if ladder and ladder is not own and ladder != own)]
    return statistics.judge(tried, known, 0)


def _measured(arm: Arm, currency: Currency) -> statistics.MeasuredArm | None:
    cost = arm.mean_cost(currency)
    return statistics.MeasuredArm(arm.name, cost, arm.losses) if cost and arm.losses else None


def _other_costs(group: Group, curves: Sequence[Sequence[Arm]]) -> tuple[dict[str, Multiplier], str]:
    """The multipliers in the currencies that depend on machines, where they compare; else why there are none."""
    runs = [run for arm in (group.ladder, *(arm for curve in curves for arm in curve)) for run in arm.runs.values()]
    if why := same_machines(runs):
        return {}, f"not comparable: {why}"
    tests = {each.key: _test([group], curves, 0, each) for each in CURRENCIES if each.is_of_machines}
    multipliers = {key: test.multiplier for key, test in tests.items() if test}
    if WALL_HOURS.key in multipliers:
        return multipliers, ""
    return multipliers, "not recorded for all runs"


def _deciding(group: Group, curve: Sequence[Arm], kind: str) -> Arm:
    """The arm of a curve that says most: see `Verdict.flops_ratio`."""
    by_cost = sorted(curve, key=lambda arm: arm.flops)
    if kind in ("not reached", "not bracketed"):
        return by_cost[-1 if kind == "not reached" else 0]
    return min(by_cost, key=lambda arm: abs(arm.flops - group.ladder.flops))


def _alike(arm: Arm, arms: Sequence[Arm]) -> list[Arm]:
    return [other for other in arms if (other.name, other.num_parameters) == (arm.name, arm.num_parameters)]


def _side(arm: Arm, name: str, tried: Sequence[Arm]) -> Side:
    """What an arm spent, in means over its seeds."""
    runs = list(arm.runs.values())
    tokens = [read for run in runs if (read := _tokens(run)) is not None]
    sizes = [run.training_tokens for run in runs if run.training_tokens]
    is_whole, is_sized = len(tokens) == len(runs), len(sizes) == len(runs)
    parts = [run.stages for run in runs]
    return Side(
        name=name,
        num_parameters=arm.num_parameters,
        costs={each.key: cost for each in CURRENCIES if (cost := arm.mean_cost(each)) is not None},
        train_tokens=fmean(tokens) if is_whole else None,
        epochs=fmean(map(truediv, tokens, sizes)) if is_whole and is_sized else None,
        evaluation_flops=fmean(sum(part.evaluation_flops for part in each) for each in parts),
        replayed_flops=fmean(sum(part.replayed_flops for part in each) for each in parts),
        rolled_back_flops=fmean(sum(part.rolled_back_flops for part in each) for each in parts),
        settings_tried=len({repr(setting) for each in tried for setting in _settings(each)}) or 1,
    )


def _tokens(run: RunReport) -> int | None:
    before = run.base.tokens if run.base else 0
    return None if before is None else before + sum(stage.train_tokens for stage in run.stages)


def _settings(arm: Arm) -> list[list[tuple[str, object]]]:
    """The values of the swept keys, at each of the peaks that tuned it."""
    run = next(iter(arm.runs.values()), None)
    tuned = [{PEAK: each} for each in arm.peaks] if len(arm.peaks) > 1 else [{}]
    return [sorted(((run.swept if run else {}) | each).items()) for each in tuned]


def _cautions(group: Group, opponent: Opponent) -> Iterator[str]:
    for arm in opponent.arms:
        run = next(iter(arm.runs.values()), None)
        yield from (f"{arm.name} {caveat}." for caveat in (run.caveats if run else ()))
        if arm.absent and not arm.diverged:
            whys = ", ".join(f"seed {seed}: {why}" for seed, why in arm.absent.items())
            yield f"{arm.name} does not count with {counted(len(arm.absent), 'seed')} of {len(group.seeds)} ({whys})."
    if spent := sum(arm.tuning_flops for arm in opponent.arms):
        yield f"Tuning the opponent cost {scientific(spent)} FLOPs more, at the peaks that lost. They are not counted."
    for arm in (arm for arm in opponent.arms if arm.tuning_flops):
        best = {peak(run) for run in arm.runs.values()} & {arm.peaks[0], arm.peaks[-1]}
        if best:
            at = " and ".join(f"{each:g}" for each in sorted(best))
            yield f"{arm.name} ended lowest at {at}, at the edge of the peaks tried: values beyond may be better."
    yield from group.notes
    for run in (run for arm in (group.ladder, *opponent.arms) for run in arm.runs.values() if opponent.kind == LADDER):
        if run.base:
            yield f"{run.name} starts from a checkpoint. {_paid(run.base)}"
    rolled_back = sum(stage.rolled_back_flops for run in group.ladder.runs.values() for stage in run.stages)
    if rolled_back:
        flops = sum(FLOPS.of(run.stages) or 0.0 for run in group.ladder.runs.values())
        share = rolled_back / (flops - rolled_back) if flops > rolled_back else 0.0
        yield f"Rollbacks after anomalies of its own cost the ladder {share:.0%} more FLOPs, which are counted."


def _divergence(arm: Arm, name: str) -> str:
    return f"{name} diverged with {counted(len(arm.diverged), 'seed')} of {len(arm.losses) + len(arm.absent)}"


def _curve_cautions(curve: Sequence[Arm]) -> Iterator[str]:
    if len(curve) < FEWEST_BUDGETS:
        yield f"Only {counted(len(curve), 'control budget')}: a curve that can be interpolated needs {FEWEST_BUDGETS}."
    by_cost = sorted(curve, key=lambda arm: arm.flops)
    losses = [fmean(arm.losses.values()) for arm in by_cost]
    if losses != sorted(losses, reverse=True):
        yield "A control with more FLOPs ended with a higher loss than one with fewer."


def _claim(verdict: Verdict, stronger: str) -> str:
    """The result in words, as the outcome and the multiplier have it. `stronger`: the opponent that is missing."""
    multiplier = verdict.multiplier
    assert multiplier is not None
    who = "growing" if grows_nothing(verdict.kind) else verdict.ladder
    seeds = seeds_text(verdict.seeds)
    needs = _needs(verdict, multiplier, who)
    nats = "" if multiplier.loss_difference is None else f" At equal FLOPs, {who} ends {_nats(multiplier)}."
    if verdict.outcome == "won" and stronger:
        return f"Won only against a weaker opponent than {stronger}: {needs} ({seeds}).{nats}"
    if verdict.outcome in ("won", "lost"):
        return f"{'Growing' if who == 'growing' else who} {verdict.outcome}: {needs} ({seeds}).{nats}"
    if verdict.outcome == "within the noise":
        detectable = verdict.detectable_nats
        least = f" These seeds would have shown {detectable:.3f} nats." if detectable is not None else ""
        return f"Within the noise: {needs} ({seeds}).{nats}{least}"
    if len(verdict.seeds) == 1:
        return f"One run of each is a look, not a result: {needs} ({seeds}).{nats}"
    return f"Not known: {needs} ({seeds}).{nats}"


def _nats(multiplier: Multiplier) -> str:
    difference, interval = multiplier.loss_difference or 0.0, multiplier.loss_interval
    side = "lower" if difference < 0 else "higher"
    ends = ""
    if interval:
        low, high = interval if difference >= 0 else (-interval[1], -interval[0])
        ends = f" (95% interval {low:.3f} to {high:.3f})"
    return f"{abs(difference):.3f} nats {side}{ends}"


def _needs(verdict: Verdict, multiplier: Multiplier, who: str) -> str:
    """`to the same loss, training the best size from scratch takes 1.32x the FLOPs, 95% interval 1.06x to 1.63x`."""
    interval = interval_text(multiplier.low, multiplier.high)
    ends = f", 95% interval {interval}" if interval else ""
    if multiplier.estimate is not None:
        return f"to the same loss, {verdict.opponent} takes {_estimate_text(multiplier)} the FLOPs{ends}"
    ratio = f"{verdict.flops_ratio:.2f}x" if verdict.flops_ratio is not None else "an unknown multiple of"
    if multiplier.kind == "not reached":
        return f"{verdict.opponent} with {ratio} the FLOPs did not reach its loss{ends}"
    if multiplier.kind == "not bracketed":
        return f"{verdict.opponent} with {ratio} the FLOPs already ended below its loss{ends}"
    return f"{verdict.opponent} has one budget, {ratio} the FLOPs of {who}"
