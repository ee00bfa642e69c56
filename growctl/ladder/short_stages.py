"""Warns of settings that need more steps than the ladder or a stage has. Nothing fails then, but it never happens."""

from collections.abc import Iterator
from itertools import chain

from growctl.ladder.rate_fit import misfits
from growctl.ladder.stage_plans import plan_stages
from growctl.schedule.blocks import Schedule


def short_stage_warnings(schedule: Schedule) -> list[str]:
    """One sentence for each setting that asks for more steps than there are: dotted path, value, steps, what to set."""
    return list(chain(_learning_rate(schedule), _intervals(schedule)))


def _learning_rate(schedule: Schedule) -> Iterator[str]:
    """Reports a warm-up that leaves the decay too few steps, in the shortest stage if each has its own."""
    rate = schedule.learning_rate
    found = min(misfits(schedule), key=lambda misfit: misfit.num_steps, default=None)
    if found is None:
        return
    who = f"stage {found.stage}" if found.stage else "the ladder"
    if found.share:
        yield (
            f"learning_rate.decay = {rate.decay:g}: {who} {found}; set it to {found.share:g} or less, or "
            f"learning_rate.warmup_steps to {found.warmup_words}."
        )
    else:
        yield (
            f"learning_rate.warmup_steps = {rate.warmup_steps}: {who} {found}; set it to {found.warmup_words}, or "
            "train longer."
        )


def _intervals(schedule: Schedule) -> Iterator[str]:
    """Reports stages that end before their first evaluation or checkpoint."""
    plans = plan_stages(schedule)
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
