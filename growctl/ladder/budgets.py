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


def stage_steps(schedule: Schedule, steps_done: Sequence[int] = (), models: Sequence[Model] | None = None) -> list[int]:
    """The optimizer steps of every stage: those that the finished stages took (`steps_done`), then whole budgets.

    `when: slope` may cut a budget short. If the ladder has one budget for all stages, the next stage then trains until
    its own share of it all the same. `models` are those of all stages at their ends, which a budget in FLOPs needs.
    """
    training, stages, steps = schedule.training, schedule.stages, [*steps_done]
    budget = training.ladder_flops or training.ladder_tokens
    costs = [float(stage_batch(schedule, index).tokens) for index in range(len(stages))]
    if training.ladder_flops is not None:
        models = models or [each.final for each in stage_models(schedule)]
        costs = [step_flops(schedule, index, model).total for index, model in enumerate(models)]
    for index in range(len(steps), len(stages)):
        stage, cost = stages[index], costs[index]
        if budget is not None:
            # Each stage ends at the step nearest to its share, counted from the ladder's first, so that roundings do
            # not add up. Halves go up: rounded to even, they would depend on the stages before.
            spent = sum(number * each for number, each in zip(steps, costs, strict=False))
            steps.append(max(1, math.floor((budget * (stage.until or 1.0) - spent) / cost + 0.5)))
        else:
            steps.append(stage.train_steps or max(1, round((stage.train_tokens or 0) / cost)))
    return steps


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
