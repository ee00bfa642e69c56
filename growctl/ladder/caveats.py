"""What a schedule asks for in vain, and why a control is a weaker baseline than intended.

Nothing fails then, but a learning rate never decays, an evaluation never happens, or a comparison favours growing.
"""

from collections.abc import Iterator

from growctl.ladder.controls import plan_controls
from growctl.ladder.sizes import stage_model
from growctl.ladder.stage_plans import plan_stages
from growctl.schedule.blocks import Schedule
from model.config import num_parameters
from stages.counted import counted

MOSTLY = 0.5
"""Smallest share of the requested decay steps that counts as fitting, if the warm-up takes some of them."""

EQUAL_SIZE = 0.05
"""Largest relative difference in parameters at which a Transformer counts as the ladder's size."""


def misfits(schedule: Schedule) -> list[str]:
    """Why warm-up and decay of the learning rate do not fit into the steps: a sentence for each such span.

    The sentences lack their subject, the name of what trains, and the full stop.
    """
    has_own_spans = schedule.learning_rate.span == "stage"
    plans = plan_stages(schedule)
    sentences = []
    for plan in plans if has_own_spans else plans[-1:]:
        rate = plan.learning_rate
        asked = round(schedule.learning_rate.decay * rate.total_steps)
        left = max(0, rate.total_steps - rate.warmup_steps)
        trains = f"trains {counted(rate.total_steps, 'step')}"
        where = f" (stage {plan.name})" if has_own_spans and len(plans) > 1 else ""
        if left == 0:
            never = "decays" if rate.warmup_steps == rate.total_steps else "reaches its peak"
            warmup = f"no more than the {rate.warmup_steps:,} of the warm-up"
            sentences.append(f"{trains}, {warmup}: its learning rate never {never}{where}")
        elif rate.shape == "wsd" and left < MOSTLY * asked:
            decay = f"its decay takes {counted(left, 'step')} instead of {asked:,}"
            sentences.append(f"{trains}, {rate.warmup_steps:,} of them warm-up: {decay}{where}")
    return sentences


def decays(schedule: Schedule) -> bool:
    """Whether the learning rate has steps to decay in, at the end of the run or (`span: stage`) of every stage."""
    plans = plan_stages(schedule)
    ends = plans if schedule.learning_rate.span == "stage" else plans[-1:]
    return all(plan.learning_rate.total_steps > plan.learning_rate.warmup_steps for plan in ends)


def schedule_caveats(schedule: Schedule) -> list[str]:
    """One sentence for each caveat of `schedule` and of its controls, and for each setting that needs more steps.

    Says nothing of a control's learning rate if the ladder's own does not fit either.
    """
    rate, own = schedule.learning_rate, misfits(schedule)
    advice = f"learning_rate.warmup_steps (now {rate.warmup_steps}) or learning_rate.decay (now {rate.decay:g})"
    caveats = [f"The ladder {misfit}; lower {advice}, or train longer." for misfit in own[:1]]
    caveats += _intervals(schedule)
    last_size = num_parameters(stage_model(schedule, len(schedule.stages) - 1))
    for control in plan_controls(schedule):
        reasons = [] if own else misfits(control.schedule)
        reasons += _comparison_caveats(control.kind, control.schedule, last_size, schedule.base_flops)
        caveats += [f"{control.name} {reason}." for reason in reasons]
    return caveats


def control_caveats(kind: str, control: Schedule, last_size: int, base_flops: float | None = 0.0) -> list[str]:
    """The caveats of one control: sentences without their subject, the control's name.

    `control` is the schedule of the control, `last_size` the number of parameters of its ladder's last stage,
    `base_flops` the cost of the ladder's start checkpoint (0 without one, None if it is not known).
    """
    return [*misfits(control), *_comparison_caveats(kind, control, last_size, base_flops)]


def _intervals(schedule: Schedule) -> Iterator[str]:
    """Reports stages that end before their first evaluation or checkpoint."""
    plans = plan_stages(schedule)
    for key, every, then in (
        ("evaluation.every", schedule.evaluation.every, "the loss is only measured at the end"),
        ("checkpoint.every", schedule.checkpoint.every, "a stop loses the whole stage"),
    ):
        short = [plan for plan in plans if every >= plan.num_steps > 1]
        if short:
            names = ", ".join(f"{plan.name} ({plan.num_steps:,} steps)" for plan in short)
            fewest = min(plan.num_steps for plan in short)
            yield f"{key} = {every}: is beyond the end of {names}, so {then}; set it to {max(1, fewest // 4)}."


def _comparison_caveats(kind: str, control: Schedule, last_size: int, base_flops: float | None) -> Iterator[str]:
    """Reports a Transformer whose size is too far from the ladder's, and a start checkpoint of unknown cost."""
    if kind == "transformer-scratch":
        size = num_parameters(stage_model(control, len(control.stages) - 1))
        if abs(size / last_size - 1) > EQUAL_SIZE:
            yield (
                f"has {size / last_size:.3g} times the parameters of the ladder's last stage: no Transformer with "
                "this vocabulary comes closer"
            )
    if base_flops is None and control.start is None:
        yield (
            "trains from scratch with the FLOPs of the ladder without its start checkpoint, whose cost is not known "
            "(start.flops): the comparison favours growing"
        )
