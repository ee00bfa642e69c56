"""The progress of a whole run: what its stages have done, and when its next evaluation and growth come."""

from collections.abc import Sequence
from typing import NamedTuple

from growctl.ladder.stage_plans import StagePlan
from growctl.progress.stage import StageProgress
from growctl.schedule.blocks import Schedule


class Ahead(NamedTuple):
    """Something that comes after more steps."""

    num_steps: int
    seconds: float | None
    """None before the first measured speed."""

    step: int
    """The step of the present stage at which it comes; for a growth, which comes after it, its last."""


class LadderProgress:
    """The progress of a ladder, or of a control: both are stages, some followed by a release."""

    def __init__(self, name: str, control: str | None, plans: Sequence[StagePlan], schedule: Schedule | None) -> None:
        """`control`: its kind, None for a ladder. `plans`: all stages, each followed by its release. `schedule`: None
        if evaluations and hardware are not known."""
        self.name = name
        self.kind = "control" if control else "ladder"
        self.stages = {plan.name: StageProgress(plan) for plan in plans}
        self.schedule = schedule

    def plan_again(self, plans: Sequence[StagePlan]) -> None:
        """Takes in the plans of all stages and releases after one of them took other steps than planned."""
        for plan in plans:
            if plan.name in self.stages:
                self.stages[plan.name].plan = plan

    @property
    def active(self) -> StageProgress | None:
        """The stage that trains now."""
        return next((stage for stage in self.stages.values() if stage.is_active), None)

    @property
    def flops(self) -> float:
        """Training FLOPs of all steps done, of releases too; not those of steps that were repeated."""
        return sum(stage.plan.step_flops.total * stage.step for stage in self.stages.values())

    @property
    def all_flops(self) -> float:
        """Training FLOPs of all steps, done and planned."""
        return sum(stage.plan.step_flops.total * stage.num_steps for stage in self.stages.values())

    def flops_so_far(self, stage: StageProgress) -> float:
        """Training FLOPs of the model that `stage` has trained, from the first stage on: without other releases."""
        parts = list(self.stages.values())
        before = parts[: parts.index(stage)]
        trunk = [part for part in before if not part.plan.branch_of]
        return sum(part.plan.step_flops.total * part.step for part in (*trunk, stage))

    @property
    def seconds_left(self) -> float | None:
        """Seconds that all stages still need, at the last measured FLOPs per second; None before the first."""
        speeds = [stage.flops_per_second for stage in self.stages.values() if stage.flops_per_second]
        return (self.all_flops - self.flops) / speeds[-1] if speeds else None

    def next_evaluation(self, stage: StageProgress) -> Ahead | None:
        """The next evaluation of `stage`, at its end at the latest; None if it is not known."""
        if self.schedule is None or stage.step >= stage.num_steps:
            return None
        every = self.schedule.evaluation.every
        step = min((stage.step // every + 1) * every, stage.num_steps)
        return Ahead(step - stage.step, stage.seconds_of(step - stage.step), step)

    def next_growth(self, stage: StageProgress) -> tuple[StagePlan, Ahead] | None:
        """The stage that the next growth leads to, and when it comes; None if none comes after `stage`.

        Releases, and stages that do not grow, come before the growth.
        """
        parts = list(self.stages.values())
        later = parts[parts.index(stage) + 1 :]
        grown = next((part for part in later if part.plan.is_grown), None)
        if grown is None:
            return None
        steps = sum(part.num_steps - part.step for part in (stage, *later[: later.index(grown)]))
        return grown.plan, Ahead(steps, stage.seconds_of(steps), stage.num_steps)

    @property
    def may_end_early(self) -> bool:
        """Whether a stage ends as soon as its loss falls too slowly."""
        return self.schedule is not None and self.schedule.growth.when == "slope"
