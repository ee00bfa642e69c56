"""Says how much each stage of a ladder trains: its batch, its context and its steps."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from growctl.ladder.sizes import attending, stage_models
from growctl.schema.blocks import Schedule
from model.config import TokenformerConfig, TransformerConfig
from model.flops import Flops, training_flops_per_token

Model = TokenformerConfig | TransformerConfig

_BATCH_POWERS = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
"""By `learning_rate.batch_scaling`: the power of the ratio of batches that the rate is multiplied with."""


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
    are rounded down: growctl/schedule/batch_checks.py reports them.
    """
    stage, training = schedule.stages[index], schedule.training
    length = stage.sequence_length or training.sequence_length
    if stage.batch_size is not None:
        return StageBatch(stage.batch_size, length)
    tokens = stage.batch_tokens or training.batch_size * training.sequence_length
    return StageBatch(max(1, tokens // length), length)


def batch_scale(schedule: Schedule, index: int) -> float:
    """The factor on the learning rate for the batch of stage `index` (`learning_rate.batch_scaling`)."""
    usual = schedule.training.batch_size * schedule.training.sequence_length
    power = _BATCH_POWERS[schedule.learning_rate.batch_scaling]
    return float((stage_batch(schedule, index).tokens / usual) ** power)


def batch_key(schedule: Schedule, index: int) -> str:
    """The dotted path of the key that says how many sequences a step of stage `index` reads."""
    stage = schedule.stages[index]
    own = ("batch_size", "batch_tokens", "sequence_length")
    return next((f"stages.{index}.{key}" for key in own if getattr(stage, key) is not None), "training.batch_size")


def evaluation_length(schedule: Schedule) -> int:
    """The context at which the validation loss of every stage is measured, so that losses compare: the last stage's."""
    return stage_batch(schedule, len(schedule.stages) - 1).sequence_length


def contexts(schedule: Schedule) -> list[int]:
    """The contexts of the stages, each once, ascending."""
    return sorted({stage_batch(schedule, index).sequence_length for index in range(len(schedule.stages))})


def shared_batch(schedule: Schedule) -> int:
    """The largest number of sequences that divides the batch of every stage. Any number of ranks that divides it can
    train them all."""
    return math.gcd(*(stage_batch(schedule, index).batch_size for index in range(len(schedule.stages))))


def stage_steps(schedule: Schedule, steps_done: Sequence[int] = (), models: Sequence[Model] | None = None) -> list[int]:
    """The optimizer steps of every stage: those that the finished stages took (`steps_done`), then whole budgets.

    `when: slope` may cut a budget short. If the ladder has one budget for all stages, the next stage then trains until
    its own share of it all the same. `models` are those of all stages at their ends, which a budget in FLOPs needs.
    """
    training = schedule.training
    if training.ladder_flops is not None:
        models = models or [each.final for each in stage_models(schedule)]
        costs = [step_flops(schedule, index, model).total for index, model in enumerate(models)]
        return _steps_of_shares(schedule, training.ladder_flops, costs, steps_done)
    if training.ladder_tokens is not None:
        costs = [stage_batch(schedule, index).tokens for index in range(len(schedule.stages))]
        return _steps_of_shares(schedule, training.ladder_tokens, costs, steps_done)
    return [*steps_done, *(_steps(schedule, index) for index in range(len(steps_done), len(schedule.stages)))]


def step_flops(schedule: Schedule, index: int, model: Model) -> Flops:
    """Training FLOPs of one optimizer step of stage `index`, which trains `model`."""
    batch = stage_batch(schedule, index)
    attended_tokens = schedule.data.attended_at(batch.sequence_length)
    return batch.tokens * training_flops_per_token(attending(schedule, model), attended_tokens)


def in_steps(schedule: Schedule, steps: Sequence[int]) -> Schedule:
    """`schedule` with these steps as the budgets of its stages, in place of whatever set them."""
    stages = [
        stage.model_copy(update={"train_tokens": None, "train_steps": each, "until": None})
        for stage, each in zip(schedule.stages, steps, strict=True)
    ]
    training = schedule.training.model_copy(update={"ladder_tokens": None, "ladder_flops": None})
    return schedule.model_copy(update={"stages": stages, "training": training})


def longest_context(schedule: Schedule) -> int:
    """The longest context of any stage, in data tokens. The order of the data is defined on windows of this length."""
    return contexts(schedule)[-1]


def _steps_of_shares(schedule: Schedule, budget: float, costs: Sequence[float], steps_done: Sequence[int]) -> list[int]:
    """The steps of every stage if one budget is for all of them, in whose unit a step of each stage has its cost.

    Each stage ends at the step that is nearest to its share of the budget, counted from the first step of the ladder,
    so that roundings do not add up. Halves go up: rounded to even, they would depend on the stages before.
    """
    steps: list[int] = []
    spent = 0.0
    for index, (stage, cost) in enumerate(zip(schedule.stages, costs, strict=True)):
        end = budget * (1.0 if stage.until is None else stage.until)
        steps.append(steps_done[index] if index < len(steps_done) else max(1, math.floor((end - spent) / cost + 0.5)))
        spent += steps[-1] * cost
    return steps


def _steps(schedule: Schedule, index: int) -> int:
    stage = schedule.stages[index]
    if stage.train_steps is not None:
        return stage.train_steps
    assert stage.train_tokens is not None
    return max(1, round(stage.train_tokens / stage_batch(schedule, index).tokens))
