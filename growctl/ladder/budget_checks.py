"""Checks how long the stages of a schedule train: their budgets, and the slope that may end a stage early."""

from collections.abc import Iterator

from growctl.ladder.budgets import stage_steps, step_flops
from growctl.ladder.sizes import stage_models
from growctl.ladder.stage_plans import StagePlan, plan_stages
from growctl.schedule.batches import stage_batch
from growctl.schedule.blocks import Schedule, StageBlock
from growctl.schedule.errors import shown
from growctl.schedule.quantities import MOST_COUNTED
from growctl.text.formatting import scientific, short_count
from stages.counted import counted

_OWN_BUDGETS = ("train_tokens", "train_steps")
_LADDER_BUDGETS = ("ladder_tokens", "ladder_flops")
_ROUNDING = 1e-9
"""More than the rounding of shares such as 1 - 0.8, relative to a budget."""


def check_budgets(schedule: Schedule) -> Iterator[str]:
    """Reports budgets that are missing, contradict each other, or hold less than a step."""
    given = [key for key in _LADDER_BUDGETS if getattr(schedule.training, key) is not None]
    if len(given) == 2:
        yield "training: has both ladder_tokens and ladder_flops; drop one (as an override: ~training.ladder_flops)"
    elif given:
        yield from _check_shares(schedule, f"training.{given[0]}")
    else:
        yield from _check_own_budgets(schedule)


def _check_own_budgets(schedule: Schedule) -> Iterator[str]:
    for index, stage in enumerate(schedule.stages):
        here, step = f"stages.{index}", stage_batch(schedule, index).tokens
        own = _own_budgets(stage)
        if stage.until is not None:
            advice = (
                f"drop it (as an override: ~{here}.until), or drop {own[0]} and set a budget for the whole ladder"
                if own
                else "set training.ladder_tokens or training.ladder_flops"
            )
            yield f"{here}.until = {stage.until:g}: is a share of the whole ladder's budget, which is missing; {advice}"
        elif not own:
            yield f"{here}: needs train_tokens, train_steps or until"
        elif len(own) == 2:
            yield f"{here}: has both train_tokens and train_steps; drop one (as an override: ~{here}.train_tokens)"
        if stage.train_tokens is not None and stage.train_tokens < step:
            yield f"{here}.train_tokens = {stage.train_tokens}: must be {step} or more, the tokens of one step"


def _check_shares(schedule: Schedule, budget: str) -> Iterator[str]:
    """Reports stages that do not divide the budget of the whole ladder, which the key `budget` sets."""
    stages = schedule.stages
    if own := [f"stages.{index}.{key}" for index, stage in enumerate(stages) for key in _own_budgets(stage)]:
        value = getattr(schedule.training, budget.partition(".")[2])
        yield (
            f"{budget} = {shown(value)}: is the budget of all stages together, so {', '.join(own)} must go (as an "
            f"override: ~{own[0]}); each stage but the last needs an until instead"
        )
        return
    before = 0.0
    for index, stage in enumerate(stages):
        here, is_last = f"stages.{index}.until", index + 1 == len(stages)
        if stage.until is None:
            if not is_last:
                yield f"{here}: is missing; with {budget}, each stage but the last ends at a share of the whole budget"
        elif is_last and stage.until < 1:
            yield f"{here} = {stage.until:g}: must be 1 in the last stage, which ends the ladder; leave it out"
        elif not is_last and stage.until == 1:
            yield f"{here} = 1: must be below 1, so that the stages after it have a share of {budget} too"
        elif stage.until <= before:
            yield f"{here} = {stage.until:g}: must be above {before:g}, where the stage before ends"
        before = max(before, stage.until or 0.0)


def _own_budgets(stage: StageBlock) -> list[str]:
    return [key for key in _OWN_BUDGETS if getattr(stage, key) is not None]


def check_ladder_budget(schedule: Schedule) -> Iterator[str]:
    """Reports a budget of the whole ladder in which a stage gets less than a step. The models must be valid."""
    training = schedule.training
    if training.ladder_tokens is not None:
        key, budget, unit = "training.ladder_tokens", float(training.ladder_tokens), "tokens"
        costs = [float(stage_batch(schedule, index).tokens) for index in range(len(schedule.stages))]
    elif training.ladder_flops is not None:
        key, budget, unit = "training.ladder_flops", training.ladder_flops, "FLOPs"
        costs = [step_flops(schedule, index, models.final).total for index, models in enumerate(stage_models(schedule))]
    else:
        return
    before = fewest = 0.0
    short = None
    for stage, cost in zip(schedule.stages, costs, strict=True):
        share, before = (stage.until or 1.0) - before, stage.until or 1.0
        needed = cost / share * (1 - _ROUNDING)
        if needed > max(fewest, budget):
            fewest, short = needed, (stage.name, share, cost)
    if short:
        name, share, cost = short
        yield (
            f"{key} = {_amount(budget)}: leaves stage {name} {share:.3g} of it, less than one step of "
            f"{_amount(cost)} {unit}; must be {_amount(fewest, up=True)} or more"
        )
    elif max(stage_steps(schedule)) > MOST_COUNTED:
        yield f"{key} = {_amount(budget)}: gives a stage more than {short_count(MOST_COUNTED)} steps; lower it"


def _amount(number: float, up: bool = False) -> str:
    """A number of tokens or FLOPs; `up`: one that is not below `number`, for a limit."""
    if number < 1:
        return f"{number:g}"
    if number < 10**9:
        return str(int(-(-number // 1)) if up else round(number))
    return scientific(number * 1.01 if up else number)


def check_trigger(schedule: Schedule) -> Iterator[str]:
    """Reports the first stage that `growth.when: slope` can never end early. The plan must be valid."""
    growth, every = schedule.growth, schedule.evaluation.every
    if growth.when != "slope":
        return
    window = growth.slope_window
    for plan in plan_stages(schedule)[:-1]:
        found = _counted_evaluations(plan, every)
        if found >= window:
            continue
        settled = max(1, plan.settled_step)
        enough = (plan.num_steps - settled) // window
        advice = f"set evaluation.every to {enough} or less" if enough else "train the stage longer"
        yield (
            f"growth.when = 'slope': can never end stage {plan.name} early: its slope is fitted through "
            f"growth.slope_window = {window} evaluations, and evaluation.every = {every} leaves {found} between step "
            f"{settled}, when warm-up, ramp, annealing and freezing are over, and the end of the stage's "
            f"{counted(plan.num_steps, 'step')}; {advice}"
        )
        return


def _counted_evaluations(plan: StagePlan, every: int) -> int:
    """The number of evaluations before a stage's last step that count for its slope."""
    first = max(1, -(-plan.settled_step // every))
    return max(0, (plan.num_steps - 1) // every - first + 1)
