"""States the result of a comparison in plain words: what growing saved or lost, and its caveats."""

from itertools import pairwise

from growctl.analysis.data_groups import mixture_shares
from growctl.text.formatting import four_digits, scientific, short_count
from growctl.verdicts.compare import (
    BEST_SCRATCH,
    EQUAL_FLOPS_TOLERANCE,
    Comparison,
    is_scratch,
    lower_envelope,
    slack,
)
from stages.counted import counted

HONEST_NUM_BUDGETS = 3
"""The fewest budgets, each with its own full decay, that make a fair curve of controls."""


def verdict(comparison: Comparison) -> tuple[str, ...]:
    """The conclusions of a comparison, one sentence each, the most important first."""
    ladder, loss = comparison.ladder, comparison.ladder.final_loss
    if loss is None:
        what = "has no final loss" if ladder.finished else "is not finished"
        return f"Nothing to compare yet: {ladder.name} {what}.", *comparison.excluded
    if not comparison.points:
        return "Nothing to compare with yet: no control counts.", *comparison.excluded
    if sizes := comparison.missing_sizes:
        names = " and ".join(short_count(size) for size in sizes)
        return (
            "Incomplete: the best size from scratch is not known, because no control of "
            f"{names} parameters counts yet.",
            *comparison.excluded,
        )
    if not ladder.cumulative_flops or not lower_envelope(comparison.points):
        return "Nothing to compare: no FLOPs are recorded of the ladder or of its controls.", *comparison.excluded
    who = "growing" if is_scratch(comparison.control) else "this ladder"
    return (
        *_unknown_start(comparison),
        _equal_loss(who, comparison, loss),
        _equal_flops(who, comparison),
        *_which_loss(comparison),
        *cautions(comparison),
        *_replays(comparison),
        *comparison.excluded,
    )


def _unknown_start(comparison: Comparison) -> list[str]:
    """A sentence in front of all others if nothing says what the ladder's start checkpoint cost."""
    base = comparison.ladder.base
    if base is None or base.flops is not None or not is_scratch(comparison.control):
        return []
    return ["Not known: nothing says what the start checkpoint cost (start.flops). What follows does not count it."]


def _equal_loss(who: str, comparison: Comparison, loss: float) -> str:
    flops, equal, saving = comparison.ladder.cumulative_flops, comparison.equal_loss, comparison.saving
    if saving is not None:
        need = (
            f"the control needs {scientific(saving * flops)} FLOPs for the {comparison.what}'s loss of {loss:.4f} nats"
        )
        times = f"{saving:.2f}x what {who} spent"
        if abs(saving - 1.0) <= EQUAL_FLOPS_TOLERANCE:
            return f"At equal loss {who} came out even: {need}, {times}."
        if saving > 1.0:
            return f"At equal loss {who} won: {need}, {times}."
        return f"At equal loss {who} lost: {need}, and {who} spent {1.0 / saving:.2f}x as many."
    if equal is not None:
        lost = f" {who} lost" if equal.flops <= flops * (1 + EQUAL_FLOPS_TOLERANCE) else ""
        return (
            f"At equal loss{lost} (not bracketed): {equal.run} ended below the {comparison.what}'s loss with "
            f"{equal.flops / flops:.2f}x its FLOPs, and no smaller budget ended above it."
        )
    best = lower_envelope(comparison.points)[-1]
    won = f" {who} won" if best.flops > flops + slack(best, flops) else ""
    return (
        f"At equal loss{won} (not bracketed): no control reached the {comparison.what}'s loss; the best, "
        f"{best.run}, has {best.flops / flops:.2f}x its FLOPs."
    )


def _equal_flops(who: str, comparison: Comparison) -> str:
    equal = comparison.equal_flops
    if equal is None:
        return (
            f"At equal FLOPs, there is no result: no control's FLOPs are within {EQUAL_FLOPS_TOLERANCE:.0%} of "
            f"the {comparison.what}'s."
        )
    difference = equal.loss_difference
    result = f"{who} {'lost' if difference > 0 else 'won'} {abs(difference):.3f} nats against"
    if abs(difference) < 0.0005:
        result = f"{who} came out even with"
    return (
        f"At equal FLOPs {result} {equal.control_run} (perplexity {four_digits(equal.ladder_perplexity)} against "
        f"{four_digits(equal.control_perplexity)}, {equal.flops_ratio:.3f}x the FLOPs)."
    )


def _which_loss(comparison: Comparison) -> list[str]:
    """A sentence on the loss of a mixture."""
    shares = mixture_shares(comparison.ladder)
    return [f"These are losses on all sources of the mixture, weighted by data.mixture ({shares})."] if shares else []


def cautions(comparison: Comparison) -> list[str]:
    """What may make the result of a comparison with points worth less, one sentence each."""
    said = []
    curves = {size: _losses_by_budget(comparison, size) for size in {p.num_parameters for p in comparison.points}}
    most = max(len(curve) for curve in curves.values())
    if most < HONEST_NUM_BUDGETS:
        said.append(
            f"Caution: only {counted(most, 'control budget')}; a fair curve needs {HONEST_NUM_BUDGETS} or more."
        )
    if any(larger > smaller for curve in curves.values() for smaller, larger in pairwise(curve)):
        said.append(
            "Caution: a larger budget for one size ended with a higher loss than a smaller one; the smaller one counts."
        )
    if comparison.control == BEST_SCRATCH:
        sizes = {stage.num_parameters: len(curves.get(stage.num_parameters, ())) for stage in comparison.ladder.stages}
        lacking = [f"{short_count(size)} at {number} of {most}" for size, number in sizes.items() if number < most]
        if lacking:
            said.append(f"Caution: some sizes have fewer budgets that count than others: {', '.join(lacking)}.")
    if not comparison.ladder.decays:
        said.append(f"Caution: the learning rate of {comparison.ladder.name} never decays; its controls' do.")
    return [*said, *(f"Caution: {caveat}" for caveat in comparison.caveats)]


def _losses_by_budget(comparison: Comparison, size: int) -> list[float]:
    """The lowest loss of a size at each of its budgets, the smallest budget first."""
    budgets: list[tuple[float, float]] = []
    for point in comparison.points:
        if point.num_parameters != size:
            continue
        if budgets and point.flops <= budgets[-1][0] + slack(point, budgets[-1][0]):
            budgets[-1] = (budgets[-1][0], min(budgets[-1][1], point.loss))
        else:
            budgets.append((point.flops, point.loss))
    return [loss for _, loss in budgets]


def _replays(comparison: Comparison) -> list[str]:
    """A sentence on replayed work, which is not part of any run's cost."""
    ladder = comparison.ladder
    costs = [(ladder.name, ladder.cumulative_flops, ladder.replayed_flops)]
    costs += [(point.run, point.flops, point.replayed_flops) for point in comparison.points]
    shares = [f"{name} +{replayed / flops:.1%}" for name, flops, replayed in costs if replayed]
    return [f"Not counted: FLOPs replayed after interruptions, {', '.join(shares)}."] if shares else []
