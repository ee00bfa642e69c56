"""What `growctl validate` says of a schedule."""

from collections.abc import Sequence
from dataclasses import dataclass

from growctl.ladder.stage_plans import plan_stages
from growctl.ladder.warnings import schedule_caveats
from growctl.schedule.blocks import Schedule
from growctl.text.formatting import short_count
from stages.counted import counted


@dataclass(frozen=True)
class StageBrief:
    """The size and the budget of a stage."""

    name: str
    num_parameters: int
    budget_tokens: int


@dataclass(frozen=True)
class CheckedSchedule:
    """A schedule that was checked."""

    file: str
    """The file or the name, as the user gave it."""

    valid: bool
    message: str | None = None
    """What is wrong; null if it is valid."""

    name: str | None = None
    """The schedule's name; null if it is invalid."""

    stages: tuple[StageBrief, ...] = ()
    warnings: tuple[str, ...] = ()
    """Warnings about its controls, its steps, its prepared dataset and ranks, one sentence or two each."""

    def line(self) -> str:
        """A valid schedule, on one line."""
        stages = [
            f"{stage.name} ({short_count(stage.num_parameters)}, {short_count(stage.budget_tokens)} tokens)"
            for stage in self.stages
        ]
        return f"{self.name}, {counted(len(stages), 'stage')}: {' -> '.join(stages)}"


@dataclass(frozen=True)
class ValidateDocument:
    """The schedules that were checked, in the order in which they were given."""

    schedules: tuple[CheckedSchedule, ...]


def checked(file: str, schedule: Schedule, further: Sequence[str] = ()) -> CheckedSchedule:
    """The brief of the valid schedule in `file`, with `further` warnings."""
    stages = tuple(StageBrief(plan.name, plan.num_parameters, plan.budget_tokens) for plan in plan_stages(schedule))
    warnings = (*schedule_caveats(schedule), *further)
    return CheckedSchedule(file, valid=True, name=schedule.name, stages=stages, warnings=warnings)
