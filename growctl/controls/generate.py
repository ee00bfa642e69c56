"""Generates the controls of a schedule, each as a schedule of its own.

Every control has the ladder's data (from sample 0), seed, batch and learning-rate block, and therefore its own warm-up
and decay (growctl/controls/caveats.py warns if it has too few steps for them). Its cost is a multiple of the whole
ladder's FLOPs, or for `scratch-of-each-size` of a finished model's. A ladder's start checkpoint counts with the FLOPs
that it cost, as far as they are known: controls that grow start from it too, the others train its share as well.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from growctl.controls.equal_size import equal_size_transformer
from growctl.ladder.releases import finished_models
from growctl.ladder.stage_plans import StagePlan, plan_stages, total_flops
from growctl.runs_dir import CONTROL_INFIX
from growctl.schema.blocks import Schedule, StageBlock
from growctl.schema.growth_block import POLICIES, GrowthBlock
from model.config import TokenformerConfig, TransformerConfig

_BUDGET = re.compile(r"-[0-9.]+x$")
"""The budget at the end of a control's name. Digits are enough: the schema allows no budget that needs an exponent."""


@dataclass(frozen=True)
class ControlPlan:
    """A run to compare a ladder with, as a schedule."""

    kind: str
    name: str
    schedule: Schedule


def plan_controls(schedule: Schedule, steps_done: Sequence[int] = ()) -> list[ControlPlan]:
    """The controls of `schedule`, in its order. `steps_done` as in `plan_stages`: budgets follow the actual steps."""
    plans = plan_stages(schedule, steps_done)
    controls = []
    for block in schedule.controls:
        for budget in block.budgets:
            for of_stage, control in _generated(schedule, plans, block.kind, budget):
                name = control_name(schedule, block.kind, of_stage, budget)
                stages = [stage.model_copy(update={"release": None}) for stage in control.stages]
                update = {"name": name, "controls": [], "releases": None, "stages": stages}
                controls.append(ControlPlan(block.kind, name, control.model_copy(update=update)))
    return controls


def control_name(schedule: Schedule, kind: str, stage: str, budget: float) -> str:
    """The unique name of a control's run. It leaves a budget of 1 out, unless the stage's name ends like a budget."""
    unsaid = budget == 1 and not _BUDGET.search(stage)
    return f"{schedule.name}{CONTROL_INFIX}" + "-".join(filter(None, (kind, stage, "" if unsaid else f"{budget:g}x")))


def _generated(schedule: Schedule, plans: list[StagePlan], kind: str, budget: float) -> Iterator[tuple[str, Schedule]]:
    """(stage name or "", schedule) of each run for one entry of `controls` at one budget."""
    base_flops = schedule.base_flops or 0.0
    flops, last = budget * (base_flops + total_flops(plans).total), len(plans) - 1
    if kind == "best-scratch":
        twin = f"{schedule.model.family}-scratch"
        covered = [block for block in schedule.controls if block.kind == twin and budget in block.budgets]
        for index, plan in enumerate(plans):
            if index < last or not covered:  # the twin already trains the last size at this budget
                yield plan.name, _with_flops(_from_scratch(schedule, index, plan.model), flops)
    elif kind == "scratch-of-each-size":
        twins = (f"{schedule.model.family}-scratch", "best-scratch")
        covered = [block for block in schedule.controls if block.kind in twins and budget in block.budgets]
        for plan, cost in finished_models(schedule, plans):
            if cost.total < total_flops(plans).total or not covered:  # the twin trains that very run
                yield plan.name, _with_flops(_from_scratch(schedule, plan.index, plan.model), budget * cost.total)
    elif kind == "tokenformer-scratch":
        yield "", _with_flops(_from_scratch(schedule, last, plans[last].model), flops)
    elif kind == "transformer-scratch":
        largest = plans[last].model
        shape = largest if isinstance(largest, TransformerConfig) else equal_size_transformer(largest)
        yield "", _with_flops(_from_scratch(schedule, last, shape), flops)
    elif kind == "single-jump":
        yield "", _with_flops(_single_jump(schedule, plans), flops - base_flops)
    else:
        yield "", _official_growth(schedule, plans, budget)


def _from_scratch(schedule: Schedule, index: int, shape: TokenformerConfig | TransformerConfig) -> Schedule:
    """A schedule with one stage: a model of that shape, trained on the machines of stage `index`."""
    update: dict[str, Any] = {"stages": [_bare(schedule.stages[index])], "launch": _launch(schedule, index)}
    update["start"] = None
    if isinstance(shape, TransformerConfig):
        sizes = shape.model_dump(include={"num_layers", "hidden_size", "num_heads", "ffn_size"})
        update["model"] = schedule.model.model_copy(update={"family": "transformer", **sizes})
        update["stages"] = [update["stages"][0].model_copy(update={"attention_tokens": None, "ffn_tokens": None})]
    return schedule.model_copy(update=update)


def _single_jump(schedule: Schedule, plans: list[StagePlan]) -> Schedule:
    """The ladder's first stage unchanged, then its last size in one growth."""
    last, shape = _bare(schedule.stages[-1]), plans[-1].model
    if isinstance(shape, TransformerConfig):
        last = last.model_copy(update=shape.model_dump(include={"num_layers", "hidden_size", "ffn_size"}))
    stages = [_with_steps(schedule.stages[0], plans[0].num_steps), last]
    growth = _fixed_growth(schedule)
    launch = _launch(schedule, 0, len(plans) - 1)
    return schedule.model_copy(update={"stages": stages, "growth": growth, "launch": launch})


def _official_growth(schedule: Schedule, plans: list[StagePlan], budget: float) -> Schedule:
    """The same ladder with the growth policy of the official code, which ramps nothing; all else is the ladder's."""
    stages = [
        _with_steps(stage.model_copy(update={"ramp_steps": None}), max(1, round(budget * plan.num_steps)))
        for stage, plan in zip(schedule.stages, plans, strict=True)
    ]
    growth = _fixed_growth(schedule).model_copy(update={"preset": "official", **POLICIES["official"]})
    return schedule.model_copy(update={"stages": stages, "growth": growth})


def _fixed_growth(schedule: Schedule) -> GrowthBlock:
    """The ladder's growth without its slope, which could end a control's stages before their budget."""
    return schedule.growth.model_copy(update={"when": "fixed", "slope": None})


def _with_flops(schedule: Schedule, flops: float) -> Schedule:
    """`schedule` with as many steps in its last stage as bring the total to `flops`; at least one step."""
    *before, last = schedule.stages
    *spent, plan = plan_stages(schedule.model_copy(update={"stages": [*before, _with_steps(last, 1)]}))
    steps = round((flops - total_flops(spent).total) / plan.step_flops.total)
    return schedule.model_copy(update={"stages": [*before, _with_steps(last, max(1, steps))]})


def _bare(stage: StageBlock) -> StageBlock:
    """A stage without the keys that describe how it grows from the one before."""
    return stage.model_copy(update=dict.fromkeys(("layers", "num_layers", "hidden_size", "ffn_size", "ramp_steps")))


def _launch(schedule: Schedule, *stages: int) -> Any:
    """The launch block with the numbers of machines of those stages."""
    nodes = [schedule.launch.nodes_of(stage) for stage in stages]
    one_for_all = isinstance(schedule.launch.nodes, int)
    return schedule.launch if one_for_all else schedule.launch.model_copy(update={"nodes": nodes})


def _with_steps(stage: StageBlock, steps: int) -> StageBlock:
    return stage.model_copy(update={"train_tokens": None, "train_steps": steps})
