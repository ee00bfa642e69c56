"""Says how many steps each stage of a ladder trains."""

import math
from collections.abc import Sequence

from growctl.ladder.sizes import attending, stage_models
from growctl.schedule.batches import stage_batch
from growctl.schedule.blocks import Schedule
from model.config import TokenformerConfig, TransformerConfig
from model.flops import Flops, training_flops_per_token

Model = TokenformerConfig | TransformerConfig

_BATCH_POWERS = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
"""By `learning_rate.batch_scaling`: the power of the ratio of batches that the rate is multiplied with."""


def batch_scale(schedule: Schedule, index: int) -> float:
    """The factor on the learning rate for the batch of stage `index` (`learning_rate.batch_scaling`)."""
    usual = schedule.training.batch_size * schedule.training.sequence_length
    power = _BATCH_POWERS[schedule.learning_rate.batch_scaling]
    return float((stage_batch(schedule, index).tokens / usual) ** power)


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
