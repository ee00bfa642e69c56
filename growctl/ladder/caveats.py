"""Reasons why a control is a weaker baseline than intended, computed from schedules alone."""

from collections.abc import Iterator

from growctl.ladder.controls import plan_controls
from growctl.ladder.rate_fit import misfits
from growctl.ladder.sizes import stage_model
from growctl.ladder.stage_plans import plan_stages
from growctl.schedule.blocks import Schedule
from model.config import num_parameters

EQUAL_SIZE = 0.05
"""Largest relative difference in parameters at which a Transformer counts as the ladder's size."""


def schedule_caveats(schedule: Schedule) -> list[str]:
    """The caveats of all controls of `schedule`: one sentence each, starting with the control's name.

    Says nothing of a warm-up that is too long for the ladder itself: `short_stage_warnings` does.
    """
    last_size = num_parameters(stage_model(schedule, len(schedule.stages) - 1))
    ladder_decays = not any(misfits(schedule))
    return [
        f"{control.name} {caveat}."
        for control in plan_controls(schedule)
        for caveat in (
            *(_decay_caveats(control.schedule) if ladder_decays else ()),
            *_other_caveats(control.kind, control.schedule, last_size, schedule.base_flops),
        )
    ]


def control_caveats(kind: str, control: Schedule, last_size: int, base_flops: float | None = 0.0) -> list[str]:
    """The caveats of one control: sentences without their subject, the control's name.

    `control` is the schedule of the control, `last_size` the number of parameters of its ladder's last stage,
    `base_flops` the cost of the ladder's start checkpoint (0 without one, None if it is not known).
    """
    return [*_decay_caveats(control), *_other_caveats(kind, control, last_size, base_flops)]


def decays(schedule: Schedule) -> bool:
    """Whether the learning rate has steps to decay in, at the end of the run or (`span: stage`) of every stage."""
    plans = plan_stages(schedule)
    ends = plans if schedule.learning_rate.span == "stage" else plans[-1:]
    return all(plan.learning_rate.total_steps > plan.learning_rate.warmup_steps for plan in ends)


def _other_caveats(kind: str, control: Schedule, last_size: int, base_flops: float | None) -> Iterator[str]:
    yield from _size_caveats(kind, control, last_size)
    yield from _base_caveats(control, base_flops)


def _decay_caveats(control: Schedule) -> Iterator[str]:
    """Reports stages whose warm-up leaves the decay no steps, or too few."""
    for misfit in misfits(control):
        yield f"{misfit} (stage {misfit.stage})" if misfit.stage else str(misfit)


def _base_caveats(control: Schedule, base_flops: float | None) -> Iterator[str]:
    """Reports a control from scratch whose ladder starts from a checkpoint of unknown cost."""
    if base_flops is None and control.start is None:
        yield (
            "trains from scratch with the FLOPs of the ladder without its start checkpoint, whose cost is not known "
            "(start.flops): the comparison favours growing"
        )


def _size_caveats(kind: str, control: Schedule, last_size: int) -> Iterator[str]:
    """Reports a Transformer control whose size is too far from the ladder's."""
    if kind == "transformer-scratch":
        size = num_parameters(stage_model(control, len(control.stages) - 1))
        if abs(size / last_size - 1) > EQUAL_SIZE:
            yield (
                f"has {size / last_size:.3g} times the parameters of the ladder's last stage: no Transformer with "
                "this vocabulary comes closer"
            )
