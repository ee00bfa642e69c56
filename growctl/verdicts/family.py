"""Compares every finished model of a ladder with its own size from scratch, and states the price of the whole family.

A ladder's finished models are its releases, and its stages whose learning rate has decayed at their end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from growctl.analysis.runs import RunReport
from growctl.text.formatting import scientific, short_count
from growctl.verdicts.compare import BEST_SCRATCH, EACH_SIZE, EQUAL_FLOPS_TOLERANCE, Comparison, compare_with
from stages.counted import counted


@dataclass(frozen=True)
class Family:
    """All finished models of a ladder, each compared with controls of its own size."""

    models: tuple[Comparison, ...]
    """In each, `ladder` is the ladder up to that model, as if the run had ended there."""
    flops: float
    """FLOPs of all of them by growing: every stage up to the last of them once, and every release."""

    @property
    def flops_from_scratch(self) -> float | None:
        """FLOPs for the losses of all of them from scratch; None unless controls bracket each of them."""
        needs = [model.flops_to_equal_loss for model in self.models]
        known = [flops for flops in needs if flops is not None]
        return sum(known) if len(known) == len(needs) else None

    @property
    def saving(self) -> float | None:
        """`flops_from_scratch` / `flops`; below 1, growing cost more."""
        return self.flops_from_scratch / self.flops if self.flops_from_scratch is not None and self.flops else None


def compare_family(ladder: RunReport, runs: Sequence[RunReport]) -> Family | None:
    """The family of `ladder`, compared with its controls among `runs`; None if nobody asked for one.

    A schedule asks for one with releases, or with controls of each size.
    """
    controls = [run for run in runs if run.control_of == ladder.name and run.stages]
    if not ladder.releases and all(control.control != EACH_SIZE for control in controls):
        return None
    models = finished_models(ladder)
    kinds = (EACH_SIZE, BEST_SCRATCH, f"{ladder.conditions.get('model.family', 'tokenformer')}-scratch")
    comparisons = []
    for model in models:
        size = model.stages[-1].num_parameters
        own = [run for run in controls if run.control in kinds and run.stages[-1].num_parameters == size]
        comparisons.append(compare_with(model, EACH_SIZE, size, own, what="model"))
    return Family(tuple(comparisons), _flops(models)) if models else None


def finished_models(ladder: RunReport) -> list[RunReport]:
    """Each finished model of `ladder`, as a run that ends with it: the stages up to it, and its release."""
    released = {release.branch_of: release for release in ladder.releases}
    models = []
    for number, stage in enumerate(ladder.stages, 1):
        release = released.get(stage.name)
        if release or stage.decayed:
            path = ladder.stages[:number] + ((release,) if release else ())
            name = f"{stage.name} of {ladder.name}"
            models.append(replace(ladder, name=name, stages=path, releases=(), points=(), decays=True))
    return models


def _flops(models: Sequence[RunReport]) -> float:
    """FLOPs of all `models`, with the stages that they share counted once."""
    stages = [[stage for stage in model.stages if not stage.branch_of] for model in models]
    trunk = max((path[-1].cumulative_flops for path in stages), default=0.0)
    return trunk + sum(stage.flops for model in models for stage in model.stages if stage.branch_of)


def price(family: Family) -> tuple[str, ...]:
    """What all finished models cost by growing and from scratch, in plain sentences."""
    unfinished = [model.ladder.stages[-1].name for model in family.models if model.ladder.final_loss is None]
    if unfinished:
        return (f"Nothing to compare yet: {', '.join(unfinished)} has no final loss.",)
    branches = sum(stage.flops for model in family.models for stage in model.ladder.stages if stage.branch_of)
    grown = (
        f"By growing, {counted(len(family.models), 'finished model')} cost {scientific(family.flops)} FLOPs, "
        f"{scientific(branches)} of them in releases"
    )
    if family.saving is None:
        unknown = "; ".join(filter(None, map(_not_bracketed, family.models)))
        return (f"{grown}.", f"From scratch, the price of their losses is unknown (not bracketed): {unknown}.")
    assert family.flops_from_scratch is not None
    base = family.models[0].ladder.base
    if base and base.flops is None:
        return (f"{grown}.", "What that saved is unknown: nothing says what the start checkpoint cost (start.flops).")
    need = f"from scratch, their losses need {scientific(family.flops_from_scratch)} FLOPs"
    if abs(family.saving - 1.0) <= EQUAL_FLOPS_TOLERANCE:
        return (f"Growing came out even. {grown}; {need}, {family.saving:.2f}x as many.",)
    if family.saving > 1.0:
        return (f"Growing won. {grown}; {need}, {family.saving:.2f}x as many.",)
    return (f"Growing lost. {grown}; {need}, and growing spent {1.0 / family.saving:.2f}x as many.",)


def _not_bracketed(model: Comparison) -> str | None:
    """Why the FLOPs for a model's loss from scratch are not known, and on which side; None if they are."""
    if model.flops_to_equal_loss is not None:
        return None
    size = f"{model.ladder.stages[-1].name} ({short_count(model.num_parameters or 0)} parameters)"
    if not model.points:
        return f"{size} has no control that counts"
    if model.equal_loss is None:
        most = max(point.flops for point in model.points)
        return f"{size} needs more than its controls had, {scientific(most)} FLOPs: none reached its loss"
    return (
        f"{size} needs less than {scientific(model.equal_loss.flops)} FLOPs: its cheapest control ended below its loss"
    )
