"""Says what each stage of a ladder reads: its steps, its place in the data, and the weights of a mixture's sources.

A position in the data is a number of data tokens, counted from the ladder's first token in the order of
stages/data/window_pieces.py. A stage begins at the first whole sequence of its own context from there on, so one with a
longer context than the stage before may skip part of a window; nothing is read twice.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from growctl.ladder.sizes import attending, stage_models
from growctl.schedule.blocks import Schedule, StageBatch, stage_batch
from model.config import TokenformerConfig, TransformerConfig
from model.flops import Flops, training_flops_per_token

if TYPE_CHECKING:
    from stages.checkpoint.manifest import Manifest

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


def first_sample(position: int, sequence_length: int) -> int:
    """The first whole sequence at or after `position`, counted in sequences of that context."""
    return -(-position // sequence_length)


def position_after(manifest: "Manifest") -> int:
    """The position at which the training of a checkpoint stopped. One that was not trained is at 0."""
    return manifest.samples_seen * (manifest.text.context_length or 0)


def stage_positions(batches: Sequence[StageBatch], steps: Sequence[int], start: int = 0) -> list[int]:
    """Where stages with these batches and steps begin, if the first one continues from `start`."""
    positions, position = [], start
    for batch, num_steps in zip(batches, steps, strict=True):
        position = first_sample(position, batch.sequence_length) * batch.sequence_length
        positions.append(position)
        position += num_steps * batch.tokens
    return positions


def stage_weights(schedule: Schedule, index: int) -> list[tuple[int, dict[str, float]]]:
    """(step of the stage, weights of the sources from there on): one entry, unless a control follows several stages.

    Empty without a mixture.
    """
    if not schedule.data.mixture:
        return []
    stage = schedule.stages[index]
    if stage.followed:
        return [(each.first_step, each.weights) for each in stage.followed]
    return [(0, stage.mixture or schedule.data.base_weights)]


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
