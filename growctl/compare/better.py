"""Which of two runs is better: at equal FLOPs and at equal loss, as far as it was measured."""

from dataclasses import dataclass
from typing import Literal

from growctl.analysis.data_groups import what_compares
from growctl.analysis.runs import RunReport
from growctl.loss_costs.equal_loss import Curve, cost_of_loss, models_of
from growctl.verdicts.costs import FLOPS
from growctl.verdicts.fairness import EQUAL_FLOPS_TOLERANCE, differing_conditions

Winner = Literal["a", "b", "even"]

EVEN_LOSSES = 0.0005
"""The largest difference of losses, in nats per token, that counts as none."""


@dataclass(frozen=True)
class Reached:
    """What one run needs for the final loss of the other."""

    flops: float | None
    """None if its finished models do not tell, for the reason `why_not`."""
    ratio: float | None
    """Those FLOPs / what the other spent: above 1, it is less efficient."""
    why_not: str


@dataclass(frozen=True)
class Outcome:
    """How runs A and B compare."""

    better: Winner | None
    """The run with the lower loss for no more FLOPs, up to 2 %; None if neither is that, or if it is not known."""
    flops_ratio: float | None
    """A's FLOPs / B's."""
    loss_difference: float | None
    """A's final loss minus B's, in nats per token; None if their losses cannot be compared."""
    a_for_loss_of_b: Reached | None
    b_for_loss_of_a: Reached | None
    """At equal loss; None if their losses cannot be compared."""
    sentences: tuple[str, ...]
    """All that in words, the most important first."""


def outcome(a: RunReport, b: RunReport) -> Outcome:
    """Which of `a` and `b` is better, or why that is not known."""
    ratio = _ratio(a, b)
    if why := _incomparable(a, b):
        return Outcome(None, ratio, None, None, None, (why,))
    assert a.final_loss is not None
    assert b.final_loss is not None
    difference = a.final_loss - b.final_loss
    a_reached, b_reached = _reached(a, b), _reached(b, a)
    winner, at_equal_flops = _at_equal_flops(a, b, difference)
    sentences = (at_equal_flops, _sentence(a, b, a_reached), _sentence(b, a, b_reached))
    return Outcome(winner, ratio, difference, a_reached, b_reached, tuple(filter(None, sentences)))


def _incomparable(a: RunReport, b: RunReport) -> str | None:
    """Why the losses of two runs show nothing, in a sentence; None if they show something."""
    compared = what_compares(a, b)
    if compared != "loss":
        other = "Compare their bits per byte." if compared == "bits per byte" else "Nothing here compares them."
        return f"Which is better is not known: losses of different datasets cannot be compared. {other}"
    unfinished = sorted(run.name for run in (a, b) if run.final_loss is None)
    if unfinished:
        return f"Which is better is not known yet: no final loss of {' and '.join(unfinished)}."
    if a.decays != b.decays:
        undecayed = a if b.decays else b
        return f"Which is better is not known: the learning rate of {undecayed.name} never decays."
    measured = sorted(path for path, _, _ in differing_conditions(a, b) if path.startswith("evaluation."))
    if measured:
        return f"Which is better is not known: their losses were not measured alike ({', '.join(measured)})."
    return None


def _ratio(a: RunReport, b: RunReport) -> float | None:
    """A's FLOPs / B's; None if those of a start checkpoint are not known, unless both began with it."""
    same_start = a.base and b.base and a.base.manifest == b.base.manifest
    if not same_start and any(run.base and run.base.flops is None for run in (a, b)):
        return None
    return a.cumulative_flops / b.cumulative_flops if a.cumulative_flops and b.cumulative_flops else None


def _at_equal_flops(a: RunReport, b: RunReport, difference: float) -> tuple[Winner | None, str]:
    """The run with the lower loss for no more FLOPs, and a sentence."""
    ratio = _ratio(a, b)
    if ratio is None:
        return None, "At equal FLOPs there is no result: the FLOPs of a run are not known."
    equal_flops = max(ratio, 1 / ratio) <= 1 + EQUAL_FLOPS_TOLERANCE
    if abs(difference) < EVEN_LOSSES:
        if equal_flops:
            return "even", "At equal FLOPs they came out even."
        cheaper, share = (a, ratio) if ratio < 1 else (b, 1 / ratio)
        return _winner(cheaper is a), f"{cheaper.name} is better: its loss is the same, for {share:.2f}x the FLOPs."
    lower, share = (a, ratio) if difference < 0 else (b, 1 / ratio)
    by = f"{abs(difference):.3f} nats"
    if equal_flops:
        return _winner(lower is a), f"At equal FLOPs {lower.name} is better by {by}."
    if share < 1:
        return _winner(lower is a), f"{lower.name} is better: its loss is lower by {by}, for {share:.2f}x the FLOPs."
    return None, f"At equal FLOPs there is no result: {lower.name} ended lower by {by}, for {share:.2f}x the FLOPs."


def _winner(is_a: bool) -> Winner:
    return "a" if is_a else "b"


def _reached(run: RunReport, other: RunReport) -> Reached:
    """What `run` needs for the final loss of `other`."""
    assert other.final_loss is not None
    reach = cost_of_loss(Curve(run.name, models_of(run)), other.final_loss, FLOPS)
    spent = FLOPS.of_run(other)
    return Reached(reach.cost, reach.cost / spent if reach.cost and spent else None, reach.why)


def _sentence(run: RunReport, other: RunReport, reached: Reached) -> str:
    if reached.flops is None:
        why = reached.why_not
        if not why.startswith(run.name):
            why = why[:1].upper() + why[1:]
        return f"For the loss of {other.name}, there is no result. {why}"
    times = f", {reached.ratio:.2f}x what {other.name} spent" if reached.ratio else ""
    return f"For the loss of {other.name}, {run.name} needs {FLOPS.shown(reached.flops)} FLOPs{times}."
