"""Releases: branches from the end of a stage on which the learning rate decays, so that they end in finished models.

A release repeats nothing: it starts from its stage's `final/`, with the optimizer's state, and reads on in the data.
The ladder does too, so its next stage trains on the same samples.
"""

from collections.abc import Sequence
from dataclasses import replace

from growctl.ladder.sizes import Growth
from growctl.ladder.stage_plans import StagePlan, plan_stages
from growctl.runs_dir import RunPaths
from growctl.schedule.blocks import Schedule
from model.flops import Flops
from stages.counted import counted
from stages.spec import GenerationRule, LearningRate
from stages.stage_dir import StagePaths


def plan_run(schedule: Schedule, steps_done: Sequence[int] = ()) -> list[StagePlan]:
    """The plans of everything that a run trains, in order: every stage, followed by its release if it has one.

    `steps_done` as in `plan_stages`.
    """
    return with_releases(schedule, plan_stages(schedule, steps_done))


def with_releases(schedule: Schedule, plans: Sequence[StagePlan]) -> list[StagePlan]:
    """`plans`, the stages of `schedule`, each followed by its release if it has one."""
    releases = {plan.index: plan_release(schedule, plan) for plan in plans}
    return [part for plan in plans for part in (plan, releases[plan.index]) if part is not None]


def plan_release(schedule: Schedule, plan: StagePlan) -> StagePlan | None:
    """The release of the stage `plan`; None if it has none, because nobody asked for one or its rate has decayed."""
    block = schedule.release_of(plan.index)
    if block is None or has_decayed(plan):
        return None
    steps = max(1, round(block.decay * plan.num_steps))
    return replace(
        plan,
        name=f"{plan.name}/release",
        branch_of=plan.name,
        num_steps=steps,
        first_step=plan.first_step + plan.num_steps,
        first_token=plan.first_token + plan.budget_tokens,
        learning_rate=LearningRate(
            shape="wsd",
            peak=plan.learning_rate.peak,
            final=plan.learning_rate.final,
            warmup_steps=0,
            decay_steps=steps,
            total_steps=steps,
            first_step=0,
            scale=plan.learning_rate.scale,
        ),
        generations=tuple(_at_the_end(rule, plan.num_steps) for rule in plan.generations),
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
        elif has_decayed(plan):
            models.append((plan, spent))
    return models


def _at_the_end(rule: GenerationRule, num_steps: int) -> GenerationRule:
    """How a generation learns after a stage of `num_steps`: as in its last step. What was frozen all along stays so."""
    return GenerationRule(lr_scale=rule.factor(num_steps - 1), weight_decay=rule.weight_decay)


def has_decayed(plan: StagePlan) -> bool:
    """Whether the learning rate has decayed at the stage's end, so that its `final/` is a finished model."""
    rate = plan.learning_rate
    at_the_end = rate.first_step + plan.num_steps >= rate.total_steps > rate.warmup_steps
    return at_the_end and (rate.shape == "cosine" or rate.decay_steps > 0)


def reason_not_to_release(plan: StagePlan) -> str | None:
    """Why no release can branch from the end of a stage; None if one can. Does not apply where the rate has decayed."""
    rate = plan.learning_rate
    end = rate.first_step + plan.num_steps
    if rate.shape == "cosine":
        return (
            "the cosine over the whole ladder has left the peak there, and a release decays from the peak; use "
            "learning_rate.shape wsd, or learning_rate.span stage, with which every stage ends in a finished model"
        )
    if end < rate.warmup_steps:
        return f"the learning rate still warms up there, until step {rate.warmup_steps}; the stage ends at step {end}"
    if rate.undecayed_steps is not None and rate.undecayed_steps < plan.num_steps:
        return (
            f"the ladder's own decay begins {counted(plan.num_steps - rate.undecayed_steps, 'step')} before the stage "
            "ends, and a release decays from the peak; use a smaller learning_rate.decay"
        )
    return None


def paths_of(run: RunPaths, plan: StagePlan) -> StagePaths:
    """The paths of a stage of `run`, or of a release, which is a directory inside its stage's."""
    stage = run.stage(plan.index, plan.branch_of or plan.name)
    return stage.release if plan.branch_of else stage
