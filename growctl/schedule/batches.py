"""Batches and contexts: how much an optimizer step of each stage reads."""

import math
from typing import NamedTuple

from growctl.schedule.blocks import Schedule


class StageBatch(NamedTuple):
    """What one optimizer step of a stage reads."""

    batch_size: int
    """Sequences, over all devices."""

    sequence_length: int
    """The stage's context, in data tokens."""

    @property
    def tokens(self) -> int:
        """Data tokens of one step."""
        return self.batch_size * self.sequence_length


def stage_batch(schedule: Schedule, index: int) -> StageBatch:
    """The batch and the context of stage `index`: what it leaves out is `training`'s.

    A stage that sets only `sequence_length` keeps `training`'s data tokens per step. Values that do not fit together
    are rounded down: growctl/ladder/batch_checks.py reports them.
    """
    stage, training = schedule.stages[index], schedule.training
    length = stage.sequence_length or training.sequence_length
    if stage.batch_size is not None:
        return StageBatch(stage.batch_size, length)
    tokens = stage.batch_tokens or training.batch_size * training.sequence_length
    return StageBatch(max(1, tokens // length), length)


def batch_key(schedule: Schedule, index: int) -> str:
    """The dotted path of the key that says how many sequences a step of stage `index` reads."""
    stage = schedule.stages[index]
    own = ("batch_size", "batch_tokens", "sequence_length")
    return next((f"stages.{index}.{key}" for key in own if getattr(stage, key) is not None), "training.batch_size")


def shared_batch(schedule: Schedule) -> int:
    """The largest number of sequences that divides the batch of every stage. Any number of ranks that divides it can
    train them all."""
    return math.gcd(*(stage_batch(schedule, index).batch_size for index in range(len(schedule.stages))))


def contexts(schedule: Schedule) -> list[int]:
    """The contexts of the stages, each once, ascending."""
    return sorted({stage_batch(schedule, index).sequence_length for index in range(len(schedule.stages))})


def longest_context(schedule: Schedule) -> int:
    """The longest context of any stage, in data tokens. The order of the data is defined on windows of this length."""
    return contexts(schedule)[-1]


def evaluation_length(schedule: Schedule) -> int:
    """The context at which the validation loss of every stage is measured, so that losses compare: the last stage's."""
    return stage_batch(schedule, len(schedule.stages) - 1).sequence_length
