"""Says how much each stage of a ladder trains: its batch, its context and its steps."""

from typing import NamedTuple

from growctl.schema.blocks import Schedule


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
    """The batch and the context of stage `index`."""
    return StageBatch(schedule.training.batch_size, schedule.training.sequence_length)


def stage_steps(schedule: Schedule) -> list[int]:
    """The optimizer steps in the whole budget of every stage, which `when: slope` may cut short."""
    return [_steps(schedule, index) for index in range(len(schedule.stages))]


def longest_context(schedule: Schedule) -> int:
    """The longest context of any stage, in data tokens. The order of the data is defined on windows of this length."""
    return max(stage_batch(schedule, index).sequence_length for index in range(len(schedule.stages)))


def _steps(schedule: Schedule, index: int) -> int:
    stage = schedule.stages[index]
    if stage.train_steps is not None:
        return stage.train_steps
    assert stage.train_tokens is not None
    return max(1, round(stage.train_tokens / stage_batch(schedule, index).tokens))
