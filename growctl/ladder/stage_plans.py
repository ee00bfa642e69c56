"""Computes the plan of each stage and release from the schedule alone: sizes, steps, FLOPs, rates, the worker's spec.

Releases are branches from the end of a stage on which the learning rate decays, so that they end in finished models. A
release repeats nothing: it starts from its stage's `final/`, with the optimizer's state, and reads on in the data. The
ladder does too, so its next stage trains on the same samples.

A position in the data is a number of data tokens, counted from the ladder's first token in the order of
stages/data/order.py. A stage begins at the first whole sequence of its own context from there on, so one with a
longer context than the stage before may skip part of a window; nothing is read twice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from growctl.ladder.sizes import Growth, attending, stage_models
from growctl.runs_dir import RunPaths
from growctl.schedule.blocks import Schedule, StageBatch
from model.flops import Flops, forward_flops_per_token, recomputed_flops_per_token, training_flops_per_token
from model.policy import has_unfinished_ramps
from model.shapes import ModelConfig, num_embedding_parameters, num_parameters, num_read_parameters
from stages.spec import GenerationRule, LearningRate, SlopeTrigger, TrainSpec
from stages.stage_dir import StagePaths

_BATCH_POWERS = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
"""By `learning_rate.batch_scaling`: the power of the ratio of batches that the rate is multiplied with."""


@dataclass(frozen=True)
class StagePlan:
    """The sizes, steps, FLOPs and learning rate of one stage, or of its release."""

    index: int
    name: str
    """The stage's name; for a release, `STAGE/release`."""

    model: ModelConfig
    """The model at the stage's end, fully ramped in or annealed. If it attends within documents, a run replaces its
    `document_end_id`."""

    num_parameters: int
    num_embedding_parameters: int
    num_read_parameters: int | None
    """Parameters that a data token reads; None: all."""
    num_steps: int
    first_step: int
    """Steps of all earlier stages."""

    batch: StageBatch
    """What an optimizer step reads."""

    first_token: int
    """Where in the data the stage begins (`stage_positions`), for a ladder that begins at 0."""

    step_flops: Flops
    """Training FLOPs of one optimizer step."""

    step_recomputed_flops: float
    """FLOPs of one optimizer step that activation checkpointing adds. They are no part of training FLOPs."""

    evaluation_flops_per_token: float
    """FLOPs of a forward pass per validation token, at the context of the ladder's last stage."""

    own_evaluation_flops_per_token: float | None
    """The same at the stage's own context; None if that is the same context."""

    learning_rate: LearningRate
    generations: tuple[GenerationRule, ...]
    """How each generation learns, by its number."""

    ramp_steps: int
    """Steps over which the new keys rise from 0; 0 without a ramp."""

    anneal_steps: int | None
    """Steps over which tau moves to the published formula; None if it stays."""

    growth: Growth
    """What the growth before the stage adds."""

    is_grown: bool
    """Whether a growth comes before the stage. Without one, it trains the model that it starts from on."""

    has_initial: bool
    """Whether the stage starts from a checkpoint: that of the stage before, or the schedule's `start`."""

    branch_of: str | None = None
    """The name of the stage that a release branches from; None for a stage of the ladder."""

    @property
    def first_sample(self) -> int:
        """`first_token` in sequences of the stage's own context."""
        return first_sample(self.first_token, self.batch.sequence_length)

    @property
    def budget_tokens(self) -> int:
        """Data tokens of the stage, in whole steps."""
        return self.num_steps * self.batch.tokens

    @property
    def flops(self) -> Flops:
        """Training FLOPs of the stage."""
        return self.step_flops * self.num_steps

    @property
    def recomputed_flops(self) -> float:
        """FLOPs of the stage that activation checkpointing adds to `flops`, for the hardware alone."""
        return self.step_recomputed_flops * self.num_steps

    @property
    def has_decayed(self) -> bool:
        """Whether the learning rate has decayed at the stage's end, so that its `final/` is a finished model."""
        rate = self.learning_rate
        at_the_end = rate.first_step + self.num_steps >= rate.total_steps > rate.warmup_steps
        return at_the_end and (rate.shape == "cosine" or rate.decay_steps > 0)

    @property
    def reason_not_to_release(self) -> str | None:
        """Why no release can branch from the stage's end; None if one can. Does not apply where the rate has
        decayed."""
        rate = self.learning_rate
        if rate.shape == "cosine":
            return "the cosine over the whole ladder has left the peak there; use learning_rate.shape wsd or span stage"
        if rate.first_step + self.num_steps < rate.warmup_steps:
            return f"the learning rate still warms up there, until step {rate.warmup_steps}"
        if rate.undecayed_steps is not None and rate.undecayed_steps < self.num_steps:
            return "the ladder's own decay begins before the stage ends; use a smaller learning_rate.decay"
        return None


def plan_stages(schedule: Schedule, steps_done: Sequence[int] = ()) -> list[StagePlan]:
    """The plans of all stages of `schedule`, in order.

    `steps_done` are the steps that the finished stages took: a slope may have ended them before their budget.
    """
    models = list(stage_models(schedule))
    steps = stage_steps(schedule, steps_done)
    batches = [schedule.batch_of(index) for index in range(len(steps))]
    positions, measured_at = stage_positions(batches, steps), batches[-1].sequence_length
    growth, plans, newest = schedule.growth, [], schedule.base.model.newest_generation if schedule.base else 0
    for index, (stage, grown) in enumerate(zip(schedule.stages, models, strict=True)):
        model, batch, num_steps = attending(schedule, grown.final), batches[index], steps[index]
        attended_tokens = schedule.data.attended_at(batch.sequence_length)
        own_flops = forward_flops_per_token(model, attended_tokens).total
        recomputed = recomputed_flops_per_token(model, attended_tokens) if schedule.launch.recompute_every else 0.0
        only_widened = grown.growth.widen > 1 and newest == model.newest_generation  # all generations are old
        newest = model.newest_generation
        ramp, anneal = (
            min(stage.ramp_steps or max(1, round(share * num_steps)), num_steps - 1)  # the last update comes at its end
            for share in (growth.ramp, growth.anneal)
        )
        plans.append(
            StagePlan(
                index=index,
                name=stage.name,
                model=model,
                num_parameters=num_parameters(model),
                num_embedding_parameters=num_embedding_parameters(model),
                num_read_parameters=num_read_parameters(model),
                num_steps=num_steps,
                first_step=sum(steps[:index]),
                batch=batch,
                first_token=positions[index],
                step_flops=step_flops(schedule, index, grown.final),
                step_recomputed_flops=batch.tokens * recomputed,
                evaluation_flops_per_token=forward_flops_per_token(model, schedule.data.attended_at(measured_at)).total,
                own_evaluation_flops_per_token=own_flops if batch.sequence_length != measured_at else None,
                learning_rate=_learning_rate(schedule, steps, index),
                generations=growth.rules(newest + only_widened, num_steps) if grown.tau else (),
                ramp_steps=ramp if has_unfinished_ramps(grown.initial) else 0,
                anneal_steps=anneal if grown.tau == "anneal" else None,
                growth=grown.growth,
                is_grown=grown.is_grown,
                has_initial=index > 0 or schedule.start is not None,
            )
        )
    return plans


def total_flops(plans: list[StagePlan]) -> Flops:
    """Training FLOPs of all stages."""
    return sum((plan.flops for plan in plans), Flops(0.0, 0.0, 0.0))


def _learning_rate(schedule: Schedule, steps: list[int], index: int) -> LearningRate:
    block = schedule.learning_rate
    total = sum(steps) if block.span == "ladder" else steps[index]
    after_warmup = max(0, total - block.warmup_steps)
    usual = schedule.training.batch_size * schedule.training.sequence_length
    return LearningRate(
        shape=block.shape,
        peak=block.peak,
        final=block.final,
        warmup_steps=block.warmup_steps,
        decay_steps=min(round(block.decay * total), after_warmup),
        total_steps=total,
        first_step=sum(steps[:index]) if block.span == "ladder" else 0,
        scale=float((schedule.batch_of(index).tokens / usual) ** _BATCH_POWERS[block.batch_scaling]),
    )


def worker_spec(schedule: Schedule, plan: StagePlan, **attempt: Any) -> TrainSpec:
    """The worker's spec of one stage. `attempt` adds the fields of one attempt, and may replace any other."""
    checkpoint, evaluation, hardware = schedule.checkpoint, schedule.evaluation, schedule.launch.hardware
    same_keys: tuple[tuple[object, tuple[str, ...]], ...] = (
        (plan, ("model", "num_steps", "learning_rate", "generations", "ramp_steps", "anneal_steps")),
        (schedule, ("seed", "anomalies")),
        (schedule.data, ("packing", "when_exhausted")),
        (schedule.training, ("precision", "log_every")),
        (schedule.launch, ("zero_stage", "offload", "kernels", "recompute_every")),
    )
    settings = {key: getattr(block, key) for block, keys in same_keys for key in keys}
    settings |= {
        "stage": plan.name,
        **plan.batch._asdict(),
        "window_length": schedule.longest_context,
        "evaluation_length": schedule.evaluation_length,
        "attended_tokens": (schedule.data.attended_tokens or {}).get(str(plan.batch.sequence_length)),
        **({"augmentation": schedule.data.images.augmentation} if schedule.data.images else {}),
        "optimizer": schedule.optimizer.optimizer(plan.model.hidden_size),
        "trigger": slope_trigger(schedule, plan),
        "evaluate_every": evaluation.every,
        "evaluation_sequences": evaluation.max_sequences,
        "checkpoint_every": checkpoint.every,
        "keep_checkpoints": checkpoint.keep,
        "keep_trunk": checkpoint.keep_trunk and not plan.branch_of,
        "keep_every_steps": checkpoint.keep_every and checkpoint.keep_every * checkpoint.every,
        "hang_seconds": float(schedule.launch.hang_timeout),
        "peak_flops": hardware.flops,
        "price_per_device_hour": hardware.price_per_device_hour,
    }
    return TrainSpec(**(settings | attempt))


def slope_trigger(schedule: Schedule, plan: StagePlan) -> SlopeTrigger | None:
    """The rule that may end a stage early; None without `growth.slope`, for the last stage and for releases."""
    growth = schedule.growth
    if growth.slope is None or plan.branch_of or plan.index + 1 == len(schedule.stages):
        return None
    return SlopeTrigger(slope=growth.slope, window=growth.slope_window, step_flops=plan.step_flops.total)


def plan_run(schedule: Schedule, steps_done: Sequence[int] = ()) -> list[StagePlan]:
    """The plans of everything that a run trains, in order: every stage, followed by its release if it has one.

    `steps_done` as in `plan_stages`.
    """
    pairs = ((plan, plan_release(schedule, plan)) for plan in plan_stages(schedule, steps_done))
    return [part for pair in pairs for part in pair if part is not None]


def plan_release(schedule: Schedule, plan: StagePlan) -> StagePlan | None:
    """The release of the stage `plan`; None if it has none, because nobody asked for one or its rate has decayed."""
    block = schedule.release_of(plan.index)
    if block is None or plan.has_decayed:
        return None
    steps = max(1, round(block.decay * plan.num_steps))
    span = {"shape": "wsd", "warmup_steps": 0, "decay_steps": steps, "total_steps": steps, "first_step": 0}
    return replace(
        plan,
        name=f"{plan.name}/release",
        branch_of=plan.name,
        num_steps=steps,
        first_step=plan.first_step + plan.num_steps,
        first_token=plan.first_token + plan.budget_tokens,
        learning_rate=plan.learning_rate.model_copy(update=span),
        generations=tuple(  # as in the stage's last step
            GenerationRule(lr_scale=rule.factor(plan.num_steps - 1), weight_decay=rule.weight_decay)
            for rule in plan.generations
        ),
        ramp_steps=0,
        anneal_steps=None,
        growth=Growth(),
        is_grown=False,
    )


def finished_models(schedule: Schedule, plans: Sequence[StagePlan]) -> list[tuple[StagePlan, Flops]]:
    """The stages of `plans` that end in a finished model, each with the FLOPs of that model from the first stage on."""
    models, spent = [], Flops(0.0, 0.0, 0.0)
    for plan in plans:
        spent += plan.flops
        if release := plan_release(schedule, plan):
            models.append((plan, spent + release.flops))
        elif plan.has_decayed:
            models.append((plan, spent))
    return models


def paths_of(run: RunPaths, plan: StagePlan) -> StagePaths:
    """The paths of a stage of `run`, or of a release, which is a directory inside its stage's."""
    stage = run.stage(plan.index, plan.branch_of or plan.name)
    return stage.release if plan.branch_of else stage


def stage_steps(schedule: Schedule, steps_done: Sequence[int] = ()) -> list[int]:
    """The optimizer steps of every stage: those that the finished stages took (`steps_done`), then whole budgets.

    `when: slope` may cut a budget short. If the ladder has one budget for all stages, the next stage then trains until
    its own share of it all the same.
    """
    training, steps, costs = schedule.training, [*steps_done], step_costs(schedule)
    budget = training.ladder_flops or training.ladder_tokens
    for stage, cost in list(zip(schedule.stages, costs, strict=True))[len(steps) :]:
        if budget is not None:
            # Each stage ends at the step nearest to its share, counted from the ladder's first, so that roundings do
            # not add up. Halves go up: rounded to even, they would depend on the stages before.
            spent = sum(number * each for number, each in zip(steps, costs, strict=False))
            steps.append(max(1, math.floor((budget * (stage.until or 1.0) - spent) / cost + 0.5)))
        else:
            steps.append(stage.train_steps or max(1, round((stage.train_tokens or 0) / cost)))
    return steps


def step_costs(schedule: Schedule) -> list[float]:
    """What one optimizer step of every stage takes of a budget: FLOPs if the ladder has one in FLOPs, else tokens."""
    if schedule.training.ladder_flops is None:
        return [float(schedule.batch_of(index).tokens) for index in range(len(schedule.stages))]
    return [step_flops(schedule, index, each.final).total for index, each in enumerate(stage_models(schedule))]


def step_flops(schedule: Schedule, index: int, model: ModelConfig) -> Flops:
    """Training FLOPs of one optimizer step of stage `index`, which trains `model`."""
    batch = schedule.batch_of(index)
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


def stage_positions(batches: Sequence[StageBatch], steps: Sequence[int], start: int = 0) -> list[int]:
    """Where stages with these batches and steps begin, if the first one continues from `start`."""
    positions, position = [], start
    for batch, num_steps in zip(batches, steps, strict=True):
        position = first_sample(position, batch.sequence_length) * batch.sequence_length
        positions.append(position)
        position += num_steps * batch.tokens
    return positions
