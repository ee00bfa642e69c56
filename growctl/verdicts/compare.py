"""Compares a ladder with its controls: FLOPs to equal loss, and loss at equal FLOPs.

A control counts with the final evaluation of a finished run that decayed within its own budget, at the FLOPs of the
work that was kept. The cost of a loss is read off the lower convex envelope of all controls of a kind, without
extrapolation. So neither replayed work nor a control that another one dominates favours growing, and one step more or
less changes the saving by at most that step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from growctl.analysis.runs import RunReport
from growctl.text.formatting import short_count
from growctl.verdicts import envelope
from growctl.verdicts.fairness import EQUAL_FLOPS_TOLERANCE, unmeant_conditions

BEST_SCRATCH = "best-scratch"
"""The control that trains every size of the ladder from scratch: the strictest bar for growing."""


EACH_SIZE = "scratch-of-each-size"
"""The control that trains every finished model of the ladder from scratch, at that model's own cost."""

_OF_LAST_SIZE = ("single-jump", "official-growth")
_OF_SOME_SIZE = (BEST_SCRATCH, EACH_SIZE, "tokenformer-scratch")


@dataclass(frozen=True)
class Point:
    """The cost and final loss of a finished control."""

    run: str
    num_parameters: int
    flops: float
    loss: float
    """Nats per token."""
    step_flops: float = 0.0
    """FLOPs per step of its last stage: budgets are whole steps."""
    replayed_flops: float = 0.0
    """FLOPs spent again after interruptions; not part of `flops`."""

    @classmethod
    def of(cls, run: RunReport, loss: float) -> "Point":
        """The point of a finished run."""
        last = run.stages[-1]
        step_flops = last.flops / max(1, last.num_steps)
        return cls(run.name, last.num_parameters, run.cumulative_flops, loss, step_flops, run.replayed_flops)


@dataclass(frozen=True)
class EqualLoss:
    """The point at which the controls reach the ladder's loss."""

    flops: float
    """FLOPs that they need for it; an upper bound if it is not `bracketed`."""
    bracketed: bool
    """Whether a smaller budget ended above the ladder's loss."""
    run: str
    """The first control on the envelope that ended at or below the ladder's loss."""


@dataclass(frozen=True)
class EqualFlops:
    """A ladder and the best control with at most about its FLOPs."""

    control_run: str
    flops_ratio: float
    """The control's FLOPs / the ladder's."""
    loss_difference: float
    """Ladder minus control, in nats per token: positive if growing lost."""
    ladder_perplexity: float
    control_perplexity: float


@dataclass(frozen=True)
class Comparison:
    """A ladder against the controls of one kind and, except for `best-scratch`, one size."""

    ladder: RunReport
    control: str
    num_parameters: int | None
    """None for `best-scratch`, which compares with every size of the ladder."""
    points: tuple[Point, ...]
    """The controls that count, by FLOPs."""
    excluded: tuple[str, ...]
    """Why the others do not count, one sentence each."""
    caveats: tuple[str, ...]
    """Caveats about those that count, one sentence each."""
    equal_loss: EqualLoss | None
    """None if no control reached the ladder's loss, or if there is nothing to compare."""
    equal_flops: EqualFlops | None
    what: str = "ladder"
    """The word for what is compared: a ladder, or one finished `model` of it."""

    @property
    def control_runs(self) -> tuple[str, ...]:
        """The names of the controls that count."""
        return tuple(point.run for point in self.points)

    @property
    def missing_sizes(self) -> tuple[int, ...]:
        """The sizes of the ladder without a control that counts, where the best of all sizes is to be compared."""
        if self.control != BEST_SCRATCH:
            return ()
        there = {point.num_parameters for point in self.points}
        sizes = dict.fromkeys(stage.num_parameters for stage in self.ladder.stages)
        return tuple(size for size in sizes if size not in there)

    @property
    def flops_to_equal_loss(self) -> float | None:
        """FLOPs that the controls need for the ladder's final loss; None if they do not bracket it or lack a size."""
        if self.equal_loss is None or self.missing_sizes:
            return None
        return self.equal_loss.flops if self.equal_loss.bracketed else None

    @property
    def saving(self) -> float | None:
        """`flops_to_equal_loss` / the ladder's FLOPs; below 1, growing cost more."""
        flops = self.flops_to_equal_loss
        return flops / self.ladder.cumulative_flops if flops is not None and self.ladder.cumulative_flops else None


def compare(ladder: RunReport, runs: Sequence[RunReport]) -> list[Comparison]:
    """Compares `ladder` with its controls among `runs`: one comparison for each kind and size.

    `best-scratch` gets a single comparison, over all sizes. `scratch-of-each-size` gets none: it is compared with the
    finished models (growctl/verdicts/family.py).
    """
    groups: dict[tuple[str, int | None], list[RunReport]] = {}
    for run in runs:
        if run.control is not None and run.control_of == ladder.name and run.stages:
            size = None if run.control == BEST_SCRATCH else run.stages[-1].num_parameters
            groups.setdefault((run.control, size), []).append(run)
    if best := groups.get((BEST_SCRATCH, None)):
        # A size of the ladder may have been trained from scratch as another kind of control; it counts here too.
        sizes = {stage.num_parameters for stage in ladder.stages}
        twins = [key for key in groups if is_scratch(key[0]) and key[1] in sizes]
        best += [run for key in twins for run in groups[key]]
    return [
        compare_with(ladder, kind, size, controls) for (kind, size), controls in groups.items() if kind != EACH_SIZE
    ]


def is_scratch(kind: str) -> bool:
    """Whether controls of that kind train one size from scratch."""
    return "scratch" in kind


def compare_with(
    ladder: RunReport, kind: str, size: int | None, controls: Sequence[RunReport], what: str = "ladder"
) -> Comparison:
    """Compares `ladder` with `controls`, all of one kind and size. `what` as in `Comparison`."""
    points: list[Point] = []
    excluded: list[str] = []
    caveats: list[str] = []
    for control in controls:
        if why := reason_not_to_count(ladder, control):
            excluded.append(f"{control.name} does not count: {why}.")
        else:
            assert control.final_loss is not None
            points.append(Point.of(control, control.final_loss))
            caveats += [f"{control.name} {caveat}." for caveat in control.caveats]
    points.sort(key=lambda point: (point.flops, point.loss))
    loss = ladder.final_loss
    return Comparison(
        *(ladder, kind, size, tuple(points), tuple(excluded), tuple(caveats)),
        equal_loss=None if loss is None else flops_to_loss(points, loss),
        equal_flops=None if loss is None else at_equal_flops(ladder.cumulative_flops, loss, points),
        what=what,
    )


def reason_not_to_count(ladder: RunReport, control: RunReport) -> str | None:
    """Why a comparison of `ladder` with `control` would be unfair or must wait; None if it is fair."""
    if control.final_loss is None:
        return "it has no final loss" if control.finished else "it is not finished"
    if not control.decays and (ladder.final_loss is None or control.final_loss > ladder.final_loss):
        return "its learning rate never decays"  # a control that beats the ladder anyway does count
    if control.dataset_fingerprint != ladder.dataset_fingerprint:
        return "it was trained on other data"
    size, sizes = control.stages[-1].num_parameters, [stage.num_parameters for stage in ladder.stages]
    if control.control in _OF_LAST_SIZE and size != sizes[-1]:
        return f"it has {short_count(size)} parameters, the ladder's last stage {short_count(sizes[-1])}"
    if control.control in _OF_SOME_SIZE and size not in sizes:
        return f"it has {short_count(size)} parameters, unlike every stage of the ladder"
    differing = [f"{path} ({its}, the ladder {ladders})" for path, ladders, its in unmeant_conditions(ladder, control)]
    return f"it differs from the ladder in {', '.join(differing)}" if differing else None


def lower_envelope(points: Sequence[Point]) -> list[Point]:
    """The points on the lower convex envelope of the losses, sorted by FLOPs (see growctl/verdicts/envelope.py)."""
    return envelope.lower_envelope(points, _flops)


def flops_to_loss(points: Sequence[Point], loss: float) -> EqualLoss | None:
    """The FLOPs at which the lower envelope of `points` reaches `loss`; None if it does not.

    If the first point of the envelope is already below `loss`, its FLOPs are an upper bound, and the result is not
    bracketed.
    """
    found = envelope.crossing(points, loss, _flops)
    return EqualLoss(found.cost, found.bracketed, found.model.run) if found else None


def _flops(point: Point) -> float:
    return point.flops


def slack(point: Point, flops: float) -> float:
    """The largest difference from a ladder's `flops` at which a control still counts as equally expensive."""
    return max(EQUAL_FLOPS_TOLERANCE * flops, point.step_flops)


def at_equal_flops(flops: float, loss: float, points: Sequence[Point]) -> EqualFlops | None:
    """Compares a ladder of that cost and loss with the best control that had no more FLOPs.

    None if no control had about as many FLOPs, unless one with fewer already ended below the ladder's loss; and for a
    ladder that cost nothing.
    """
    if not flops:
        return None
    affordable = [point for point in points if point.flops <= flops + slack(point, flops)]
    best = min(affordable, key=lambda point: (point.loss, point.flops), default=None)
    if best is None or (best.loss > loss and all(point.flops < flops - slack(point, flops) for point in affordable)):
        return None
    return EqualFlops(best.run, best.flops / flops, loss - best.loss, math.exp(loss), math.exp(best.loss))
