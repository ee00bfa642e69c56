"""The runs that a schedule generates to be compared with: each a schedule of its own.

Every control has the ladder's data (from sample 0), seed, batch and learning-rate block, and so its own warm-up and
decay (growctl/controls/caveats.py says where its steps are too few for them). What it costs is a multiple of the whole
ladder's FLOPs.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from growctl.controls.equal_size import equal_size_transformer
from growctl.ladder.stage_plans import StagePlan, plan_stages, total_flops
from growctl.schema.blocks import POLICIES, GrowthBlock, Schedule, StageBlock
from model.config import TokenformerConfig, TransformerConfig

_BUDGET = re.compile(r"-[0-9.]+x$")
"""How a control's name ends that says its budget: as digits, for the schema takes none that needs an exponent."""


@dataclass(frozen=True)
class ControlPlan:
    """A run to compare a ladder with: a schedule of its own."""

    kind: str
    name: str
    schedule: Schedule


def plan_controls(schedule: Schedule, steps_done: Sequence[int] = ()) -> list[ControlPlan]:
    """The controls of `schedule`, in its order; for what its stages come to (`steps_done` as in `plan_stages`)."""
    plans = plan_stages(schedule, steps_done)
    controls = []
    for block in schedule.controls:
        for budget in block.budgets:
            for stage, control in _generated(schedule, plans, block.kind, budget):
                name = control_name(schedule, block.kind, stage, budget)
                update = {"name": name, "controls": []}
                controls.append(ControlPlan(block.kind, name, control.model_copy(update=update)))
    return controls


def control_name(schedule: Schedule, kind: str, stage: str, budget: float) -> str:
    """The run's name, each control's its own: the budget 1 goes unsaid but behind a stage that ends like a budget."""
    unsaid = budget == 1 and not _BUDGET.search(stage)
    return "-".join(filter(None, (schedule.name, "control", kind, stage, "" if unsaid else f"{budget:g}x")))


def _generated(schedule: Schedule, plans: list[StagePlan], kind: str, budget: float) -> Iterator[tuple[str, Schedule]]:
    """What one entry comes to at one budget: a run, or one for each stage, with the stage's name."""
    flops, last = budget * total_flops(plans).total, len(plans) - 1
    if kind == "best-scratch":
        twin = f"{schedule.model.family}-scratch"
        covered = [block for block in schedule.controls if block.kind == twin and budget in block.budgets]
        for index, plan in enumerate(plans):
            if index < last or not covered:  # else the last size has such a run already
                yield plan.name, _with_flops(_from_scratch(schedule, index, plan.model), flops)
    elif kind == "tokenformer-scratch":
        yield "", _with_flops(_from_scratch(schedule, last, plans[last].model), flops)
    elif kind == "transformer-scratch":
        largest = plans[last].model
        shape = largest if isinstance(largest, TransformerConfig) else equal_size_transformer(largest)
        yield "", _with_flops(_from_scratch(schedule, last, shape), flops)
    elif kind == "single-jump":
        yield "", _with_flops(_single_jump(schedule, plans), flops)
    else:
        yield "", _official_growth(schedule, plans, budget)


def _from_scratch(schedule: Schedule, index: int, shape: TokenformerConfig | TransformerConfig) -> Schedule:
    """A schedule of one stage, for a model of that shape, on the machines of the stage `index`."""
    update: dict[str, Any] = {"stages": [_bare(schedule.stages[index])], "launch": _launch(schedule, index)}
    if isinstance(shape, TransformerConfig):
        sizes = shape.model_dump(include={"num_layers", "hidden_size", "num_heads", "ffn_size"})
        update["model"] = schedule.model.model_copy(update={"family": "transformer", **sizes})
        update["stages"] = [update["stages"][0].model_copy(update={"attention_tokens": None, "ffn_tokens": None})]
    return schedule.model_copy(update=update)


def _single_jump(schedule: Schedule, plans: list[StagePlan]) -> Schedule:
    """The ladder's first stage as it is, then its last size at once."""
    last, shape = _bare(schedule.stages[-1]), plans[-1].model
    if isinstance(shape, TransformerConfig):
        last = last.model_copy(update=shape.model_dump(include={"num_layers", "hidden_size", "ffn_size"}))
    stages = [_with_steps(schedule.stages[0], plans[0].num_steps), last]
    growth = _fixed_growth(schedule)
    launch = _launch(schedule, 0, len(plans) - 1)
    return schedule.model_copy(update={"stages": stages, "growth": growth, "launch": launch})


def _official_growth(schedule: Schedule, plans: list[StagePlan], budget: float) -> Schedule:
    """The same ladder, grown as the official code does. All but that growth's policy stays the ladder's."""
    stages = [
        _with_steps(stage, max(1, round(budget * plan.num_steps)))
        for stage, plan in zip(schedule.stages, plans, strict=True)
    ]
    growth = _fixed_growth(schedule).model_copy(update={"preset": "official", **POLICIES["official"]})
    return schedule.model_copy(update={"stages": stages, "growth": growth})


def _fixed_growth(schedule: Schedule) -> GrowthBlock:
    """The ladder's growth without its slope, which would end a control's stages before their budget."""
    return schedule.growth.model_copy(update={"when": "fixed", "slope": None})


def _with_flops(schedule: Schedule, flops: float) -> Schedule:
    """`schedule`, its last stage of as many steps as bring the whole to `flops`; one step at least."""
    *before, last = schedule.stages
    *spent, plan = plan_stages(schedule.model_copy(update={"stages": [*before, _with_steps(last, 1)]}))
    steps = round((flops - total_flops(spent).total) / plan.step_flops.total)
    return schedule.model_copy(update={"stages": [*before, _with_steps(last, max(1, steps))]})


def _bare(stage: StageBlock) -> StageBlock:
    """A stage without what it says of growing into it."""
    return stage.model_copy(update=dict.fromkeys(("layers", "num_layers", "hidden_size", "ffn_size")))


def _launch(schedule: Schedule, *stages: int) -> Any:
    """The launch block with the machines of those stages."""
    nodes = [schedule.launch.nodes_of(stage) for stage in stages]
    one_for_all = isinstance(schedule.launch.nodes, int)
    return schedule.launch if one_for_all else schedule.launch.model_copy(update={"nodes": nodes})


def _with_steps(stage: StageBlock, steps: int) -> StageBlock:
    return stage.model_copy(update={"train_tokens": None, "train_steps": steps})
