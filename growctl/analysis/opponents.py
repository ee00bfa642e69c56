"""What a ladder is compared with: its strongest opponents, and the arms of each that the comparison needs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from growctl.analysis import statistics
from growctl.analysis.conditions import BEST_SCRATCH, EACH_SIZE, UNGROWN
from growctl.analysis.curve import EQUAL_COST
from growctl.analysis.groups import Arm, Group, size_text
from growctl.runs.runs import RunReport
from growctl.text.formatting import short_count

_BEST = "training the best size from scratch"
_NAMES: dict[str, Callable[[Arm], str]] = {
    "decoder-scratch": lambda arm: f"training a decoder of {size_text(arm.num_parameters)} from scratch",
    "single-jump": lambda arm: f"growing to {size_text(arm.num_parameters)} in a single jump",
    "ungrown": lambda arm: f"training its {size_text(arm.num_parameters)} further",
    "official-growth": lambda arm: f"growing to {size_text(arm.num_parameters)} as the official code does",
}


@dataclass(frozen=True)
class Opponent:
    """What a ladder is compared with."""

    name: str
    kind: str
    curves: tuple[tuple[Arm, ...], ...]
    """The arms by size, or by size and setting; the best curve decides."""
    is_strictest: bool = True
    """Whether no stronger one is missing."""
    unknown: str = ""
    """Why nothing can be won against it, or compared with it at all."""

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms of all curves."""
        return tuple(arm for curve in self.curves for arm in curve)

    def needed_by(self, ladder: Arm) -> "Opponent":
        """This opponent without arms that diverged at budgets that a comparison with `ladder` does not need."""
        return replace(self, curves=tuple(_needed(ladder, curve) for curve in self.curves))


def opponents(group: Group) -> list[Opponent]:
    """What the ladders of `group` are compared with: their start checkpoint trained further, the best size from
    scratch, and then other ways to grow."""
    others: dict[str, list[Arm]] = {}
    for arm in group.controls:
        if arm.control not in from_scratch_kinds(group.first) and arm.control:
            others.setdefault(f"{arm.control} {arm.num_parameters}", []).append(arm)
    from_scratch = scratch_opponent(group)
    named = [
        Opponent(_NAMES[kind](arms[0]) if (kind := arms[0].control or "") in _NAMES else kind, kind, (tuple(arms),))
        for arms in others.values()
    ]
    found = sorted([*([from_scratch] if from_scratch else []), *named], key=lambda opponent: opponent.kind != UNGROWN)
    if found and (found[0].kind == UNGROWN if group.first.base else from_scratch):
        return found
    return [replace(opponent, is_strictest=False) for opponent in found]


def scratch_opponent(group: Group) -> Opponent | None:
    """Training from scratch: the best of all sizes of the ladder that were trained for about its cost.

    None if no such control was asked for.
    """
    arms = [arm for arm in group.controls if arm.control in from_scratch_kinds(group.first)]
    if not arms or all(arm.control == EACH_SIZE for arm in arms):
        return None
    flops = group.ladder.flops
    sizes = dict.fromkeys(stage.num_parameters for stage in group.first.stages)
    others = dict.fromkeys(arm.num_parameters or 0 for arm in arms if arm.control == BEST_SCRATCH)  # of other depths
    by_size = {size: tuple(arm for arm in arms if arm.num_parameters == size) for size in sizes | others}
    measured = tuple(some for some in by_size.values() if any(arm.losses for arm in some))
    lacking = [short_count(size) for size, some in by_size.items() if not some or (flops and not _covers(some, flops))]
    asked = any(arm.control == BEST_SCRATCH for arm in arms)
    if asked and lacking:
        why = f"no control of {' and '.join(lacking)} parameters counts at the ladder's FLOPs yet"
        return Opponent(_BEST, BEST_SCRATCH, measured, unknown=why if group.ladder.runs else "")
    if not lacking and len(sizes) > 1:
        return Opponent(_BEST, BEST_SCRATCH, measured)
    last = list(sizes)[-1] if sizes else None
    own = by_size.get(last or 0, ()) or tuple(arms)
    name = f"training {size_text(own[0].num_parameters)} from scratch"
    return Opponent(name, own[0].control or "", (own,), is_strictest=len(sizes) == 1)


def _needed(ladder: Arm, curve: tuple[Arm, ...]) -> tuple[Arm, ...]:
    """`curve` without arms that diverged outside the stretch between sound arms that holds both the ladder's cost and
    the cost of its loss."""
    flops, sound = ladder.flops, [arm for arm in curve if arm.losses and not arm.diverged]
    points = [(arm.flops, fmean(arm.losses.values())) for arm in sound]
    if len(sound) == len(curve) or not flops or not ladder.losses or not all(cost for cost, _ in points):
        return curve
    reached = statistics.cost_at_loss(points, fmean(ladder.losses.values()))[0]
    low, high = min(flops, reached or 0.0), max(flops, reached or math.inf)
    below = [cost for cost, _ in points if cost <= low * (1 + EQUAL_COST)]
    above = [cost for cost, _ in points if cost >= high / (1 + EQUAL_COST)]
    if not below or not above:
        return curve
    return tuple(arm for arm in curve if not arm.diverged_flops or max(below) <= arm.diverged_flops <= min(above))


def from_scratch_kinds(ladder: RunReport) -> tuple[str, ...]:
    """The kinds of controls that train sizes of `ladder` from scratch."""
    return f"{ladder.conditions.get('model.family', 'tokenformer')}-scratch", BEST_SCRATCH, EACH_SIZE


def _covers(arms: Sequence[Arm], flops: float) -> bool:
    """Whether any of `arms` cost about `flops`, or some less and some more."""
    costs = [cost for arm in arms if arm.losses and (cost := arm.flops)]
    near = any(abs(cost / flops - 1) <= EQUAL_COST for cost in costs)
    return near or (bool(costs) and min(costs) < flops < max(costs))
