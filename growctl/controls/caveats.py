"""What makes a control less than it is meant to be: known from schedules alone, for `validate`, `plan` and `report`."""

from collections.abc import Iterator

from growctl.controls.generate import plan_controls
from growctl.ladder.sizes import stage_model
from growctl.ladder.stage_plans import plan_stages
from growctl.schema.blocks import Schedule
from model.config import num_parameters

EQUAL_SIZE = 0.05
"""Difference in parameters up to which a Transformer passes for one of the ladder's size."""

MOSTLY = 0.5
"""Share of the steps it should take that a decay has at least, where the warm-up takes some of them."""


def schedule_caveats(schedule: Schedule) -> list[str]:
    """The caveats of all controls that `schedule` asks for, a sentence each, with the control's name."""
    last_size = num_parameters(stage_model(schedule, len(schedule.stages) - 1))
    return [
        f"{control.name} {caveat}."
        for control in plan_controls(schedule)
        for caveat in control_caveats(control.kind, control.schedule, last_size)
    ]


def control_caveats(kind: str, control: Schedule, last_size: int) -> list[str]:
    """What a reader of a comparison with a control should know, each to be read behind the control's name.

    `control` is its own schedule, `last_size` the parameters of its ladder's last stage.
    """
    return [*_decay_caveats(control), *_size_caveats(kind, control, last_size)]


def decays(schedule: Schedule) -> bool:
    """Whether the learning rate of a run has steps to come down in, at its end or at that of every stage."""
    plans = plan_stages(schedule)
    ends = plans if schedule.learning_rate.span == "stage" else plans[-1:]
    return all(plan.learning_rate.total_steps > plan.learning_rate.warmup_steps for plan in ends)


def _decay_caveats(control: Schedule) -> Iterator[str]:
    """Where the warm-up leaves the learning rate no steps to come down in, or few of those that it should have."""
    plans = plan_stages(control)
    of_stages = control.learning_rate.span == "stage"
    for plan in plans if of_stages else plans[-1:]:
        rate = plan.learning_rate
        where = f" in stage {plan.name}" if of_stages and len(plans) > 1 else ""
        asked = round(control.learning_rate.decay * rate.total_steps)
        if rate.total_steps <= rate.warmup_steps:
            yield (
                f"trains {rate.total_steps} steps{where}, no more than the {rate.warmup_steps} of the warm-up: its "
                "learning rate never decays"
            )
        elif rate.shape == "wsd" and rate.decay_steps < MOSTLY * asked:
            yield (
                f"trains {rate.total_steps} steps{where}, {rate.warmup_steps} of them warm-up: its decay takes "
                f"{rate.decay_steps} steps instead of {asked}"
            )


def _size_caveats(kind: str, control: Schedule, last_size: int) -> Iterator[str]:
    """Where the Transformer that should be of the ladder's size is not."""
    if kind == "transformer-scratch":
        size = num_parameters(stage_model(control, len(control.stages) - 1))
        if abs(size / last_size - 1) > EQUAL_SIZE:
            yield (
                f"has {size / last_size:.3g} times the parameters of the ladder's last stage: no Transformer of its "
                "vocabulary is nearer"
            )
