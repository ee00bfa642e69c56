"""Warns of settings that need more steps than the ladder or a stage has. Nothing fails then, but it never happens."""

from collections.abc import Iterator, Sequence
from itertools import chain

from growctl.ladder.stage_plans import StagePlan, plan_stages
from growctl.schema.blocks import Schedule

WHOLE = 1.0
"""A `decay` of this share means all steps after the warm-up, so it may be cut short by the warm-up."""


def short_stage_warnings(schedule: Schedule) -> list[str]:
    """One sentence for each setting that asks for more steps than there are: dotted path, value, steps, what to set."""
    plans = plan_stages(schedule)
    return list(chain(_learning_rate(schedule, plans), _intervals(schedule, plans)))


def _learning_rate(schedule: Schedule, plans: Sequence[StagePlan]) -> Iterator[str]:
    """Reports a warm-up that does not end within its span, and a decay that does not fit behind the warm-up."""
    rate = schedule.learning_rate
    of_stages = rate.span == "stage"
    shortest = min(plans, key=lambda plan: plan.learning_rate.total_steps)
    steps = shortest.learning_rate.total_steps
    who = f"stage {shortest.name} trains" if of_stages else "the ladder trains"
    fits = f"{who} {steps:,} steps"
    if rate.warmup_steps >= steps:
        yield (
            f"learning_rate.warmup_steps = {rate.warmup_steps}: {fits}, so the rate never "
            f"{'decays' if rate.warmup_steps == steps else 'reaches its peak'}; set it to {max(1, steps // 50)}, 2 % "
            f"of them, or train longer."
        )
        return
    asked, left = round(rate.decay * steps), shortest.learning_rate.decay_steps
    if rate.shape == "wsd" and rate.decay < WHOLE and asked > left:
        share = int(100 * left / steps) / 100
        yield (
            f"learning_rate.decay = {rate.decay:g}: {fits}, of which the decay asks for {asked:,} and the warm-up "
            f"takes {rate.warmup_steps:,}, so the rate decays over {left:,}; set it to {share:g} or less, or "
            "learning_rate.warmup_steps lower."
        )


def _intervals(schedule: Schedule, plans: Sequence[StagePlan]) -> Iterator[str]:
    """Reports stages that end before their first evaluation or checkpoint."""
    for key, every, happens in (
        ("evaluation.every", schedule.evaluation.every, "so the loss is only measured at the end"),
        ("checkpoint.every", schedule.checkpoint.every, "so a stop loses the whole stage"),
    ):
        short = [plan for plan in plans if every >= plan.num_steps > 1]
        if short:
            names = ", ".join(f"{plan.name} ({plan.num_steps:,} steps)" for plan in short)
            fewest = min(plan.num_steps for plan in short)
            yield (
                f"{key} = {every}: {'stage' if len(short) == 1 else 'stages'} {names} "
                f"{'has' if len(short) == 1 else 'have'} none in between, {happens}; set it to "
                f"{max(1, fewest // 4)}, or anything below {fewest:,}."
            )
