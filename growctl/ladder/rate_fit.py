"""Judges whether warm-up and decay of the learning rate fit into the steps that a schedule trains."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor

from growctl.ladder.stage_plans import plan_stages
from growctl.schedule.blocks import Schedule
from stages.counted import counted

MOSTLY = 0.5
"""Smallest share of the requested decay steps that counts as fitting, if the warm-up takes some of them."""

USEFUL_SHARE = 0.05
"""The smallest `learning_rate.decay` to suggest."""

STEPS_PER_WARMUP_STEP = 50
"""A warm-up to suggest has 2 % of the steps."""


@dataclass(frozen=True)
class Misfit:
    """A span of a learning rate that has too few steps for its warm-up and its decay."""

    stage: str | None
    """The stage that is the span; None if the span is the whole ladder, or control."""
    num_steps: int
    warmup_steps: int
    asked: int
    """The steps that the decay asks for (`wsd`)."""
    left: int
    """The steps that the warm-up leaves it."""

    def __str__(self) -> str:
        """What is wrong, in words that follow the name of what trains."""
        trains = f"trains {counted(self.num_steps, 'step')}"
        if self.left:
            decay = f"its decay takes {counted(self.left, 'step')} instead of {self.asked:,}"
            return f"{trains}, {self.warmup_steps:,} of them warm-up: {decay}"
        never = "decays" if self.warmup_steps == self.num_steps else "reaches its peak"
        return f"{trains}, no more than the {self.warmup_steps:,} of the warm-up: its learning rate never {never}"

    @property
    def share(self) -> float | None:
        """The largest `learning_rate.decay` that fits behind the warm-up; None if it is not worth suggesting."""
        share = floor(100 * self.left / self.num_steps) / 100
        return share if share >= USEFUL_SHARE else None

    @property
    def warmup_words(self) -> str:
        """The value of `learning_rate.warmup_steps` to suggest."""
        if most := self.num_steps - self.asked if self.left else 0:
            return f"{most:,} or less"
        if self.num_steps < STEPS_PER_WARMUP_STEP:
            return str(min(1, self.num_steps - 1))
        return f"{self.num_steps // STEPS_PER_WARMUP_STEP:,}, 2 % of them"


def misfits(schedule: Schedule) -> Iterator[Misfit]:
    """The spans of `schedule` whose warm-up ends too late for the decay, or does not end at all."""
    of_stages = schedule.learning_rate.span == "stage"
    plans = plan_stages(schedule)
    for plan in plans if of_stages else plans[-1:]:
        rate = plan.learning_rate
        asked = round(schedule.learning_rate.decay * rate.total_steps)
        left = max(0, rate.total_steps - rate.warmup_steps)
        if left == 0 or (rate.shape == "wsd" and left < MOSTLY * asked):
            stage = plan.name if of_stages and len(plans) > 1 else None
            yield Misfit(stage, rate.total_steps, rate.warmup_steps, asked, left)
