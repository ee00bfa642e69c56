"""Every finished model of a ladder against its own size from scratch, and the price of all of them together.

A ladder's finished models are its releases, and its stages whose learning rate has decayed at their end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from growctl.analysis.conditions import EACH_SIZE
from growctl.analysis.costs import FLOPS
from growctl.analysis.groups import Arm, Group, size_text
from growctl.analysis.judge import Verdict, interval_text, judge, next_budget, training_command
from growctl.analysis.opponents import Opponent, from_scratch_kinds
from growctl.analysis.statistics import Outcome
from growctl.runs.runs import RunReport
from growctl.text.formatting import scientific
from stages.counted import counted


@dataclass(frozen=True)
class Family:
    """The price of all finished models of a ladder by growing, and from scratch to the same losses."""

    ladder: str
    question: str
    """The question that it answers."""
    models: tuple[Verdict, ...]
    """Each finished model against its own size from scratch."""
    flops: float | None
    """By growing: every stage up to the last of them once, and every release; the mean over seeds."""
    ratio: float | None
    """Price from scratch / `flops`; None unless the losses of all models are bracketed."""
    low: float | None
    """The 95% interval of `ratio`: the sums of the models' own ends, which is wide enough however they depend on each
    other."""
    high: float | None
    outcome: Outcome
    claim: str
    command: str
    """The command that trains more controls; empty if every loss is bracketed, or if costs are not recorded."""

    @property
    def ratio_text(self) -> str:
        """`1.38x`; `at most 1.38x` if the price of a model is read off a chord; empty without a ratio."""
        is_chord = any(model.multiplier and model.multiplier.kind == "chord" for model in self.models)
        return f"{'at most ' * is_chord}{self.ratio:.2f}x" if self.ratio else ""


def finished_models(ladder: RunReport) -> list[RunReport]:
    """Each finished model of `ladder`, as a run that ends with it: the stages up to it, and its release."""
    released = {release.branch_of: release for release in ladder.releases}
    models = []
    for number, stage in enumerate(ladder.stages, 1):
        release = released.get(stage.name)
        if release or stage.decayed:
            path = ladder.stages[:number] + ((release,) if release else ())
            models.append(replace(ladder, name=f"{stage.name} of {ladder.name}", stages=path, releases=(), points=()))
    return models


def model_arms(group: Group) -> list[Arm]:
    """The finished models of the ladders of `group`, each with every seed; the cheapest first."""
    by_stage: dict[str, dict[int, RunReport]] = {}
    for seed, ladder in group.ladder.runs.items():
        for model in [*finished_models(ladder), *([] if ladder.stages[-1].decayed or not ladder.decays else [ladder])]:
            if model.final_loss is not None:
                by_stage.setdefault(model.stages[-1].name, {})[seed] = model
    return [
        Arm(name, None, next(iter(runs.values())).stages[-1].num_parameters, runs, group.ladder.absent)
        for name, runs in by_stage.items()
    ]


def family(group: Group) -> Family | None:
    """The family of the ladders of `group`; None if nobody asked for one, with releases or controls of each size."""
    asked = group.first.releases or any(arm.control == EACH_SIZE for arm in group.controls)
    arms = model_arms(group)
    if not asked or not arms:
        return None
    models = tuple(_verdict(group, arm) for arm in arms)
    prices = [_price(run) for run in group.ladder.runs.values()]
    flops = None if None in prices else fmean(price for price in prices if price is not None)
    parts = [(arm.flops, verdict.multiplier) for arm, verdict in zip(arms, models, strict=True)]
    sums = []
    for end in ("estimate", "low", "high"):
        terms = [
            getattr(multiplier, end) * cost if multiplier and getattr(multiplier, end) is not None else None
            for cost, multiplier in parts
        ]
        known = [term for term in terms if term is not None]
        sums.append(sum(known) / flops if len(known) == len(terms) and flops else None)
    ratio, low, high = sums
    have = "the start checkpoint" if group.first.base else "no model yet"
    question = f"To someone who has {have} and wants all of these sizes, is growing worth it?"
    lacking = [model for model in models if not model.multiplier or model.multiplier.estimate is None]
    command = training_command([group], EACH_SIZE, map(next_budget, lacking)) if lacking and flops else ""
    made = Family(group.name, question, models, flops, ratio, low, high, _outcome(models, low, high), "", command)
    return replace(made, claim=_claim(made))


def _verdict(group: Group, arm: Arm) -> Verdict:
    """The verdict on one finished model, against controls of its size."""
    kinds = from_scratch_kinds(group.first)
    own = tuple(each for each in group.controls if each.control in kinds and each.num_parameters == arm.num_parameters)
    model = replace(group, name=f"{arm.name} of {group.name}", ladder=arm)
    name = f"training {size_text(arm.num_parameters)} from scratch"
    unknown = "" if own else f"no control has {size_text(arm.num_parameters)}"
    return judge([model], Opponent(name, EACH_SIZE, (own,), unknown=unknown))


def _price(ladder: RunReport) -> float | None:
    """FLOPs of all finished models of one ladder, with what they share counted once; None if not known."""
    parts = {stage.name: stage for model in finished_models(ladder) for stage in model.stages}
    return FLOPS.of(tuple(parts.values()))


def _outcome(models: Sequence[Verdict], low: float | None, high: float | None) -> Outcome:
    if low is not None and low > 1.0:
        return "won"
    if high is not None and high < 1.0:
        return "lost"
    return "unknown" if low is None or high is None or any(not model.seeds for model in models) else "within the noise"


def _claim(made: Family) -> str:
    if made.flops is None:
        return "Not known: not every cost is recorded."
    grown = f"by growing, {counted(len(made.models), 'finished model')} cost {scientific(made.flops)} FLOPs"
    if made.ratio is None:
        whys = "; ".join(
            f"{model.ladder}: {model.multiplier.kind if model.multiplier else model.claim}"
            for model in made.models
            if model.multiplier is None or model.multiplier.estimate is None
        )
        return f"Not known: {grown}, but not every loss is bracketed from scratch ({whys})."
    interval = f", 95% interval {ends}" if (ends := interval_text(made.low, made.high)) else ""
    need = f"{grown}; from scratch, their losses cost {made.ratio_text} that{interval}"
    is_look = made.outcome == "unknown" and min(len(model.seeds) for model in made.models) < 2
    unknown = "One run of each is a look, not a result" if is_look else "Not known"
    result = {"won": "Growing won", "lost": "Growing lost", "unknown": unknown}.get(made.outcome, "Within the noise")
    return f"{result}: {need}."
