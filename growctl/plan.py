"""What a schedule comes to, from its text alone: sizes, steps, FLOPs, learning rates; and the controls it generates."""

import math
from bisect import bisect_left
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from growctl.numbers import scientific, short_count
from growctl.schedule import Schedule, StageBlock
from model.config import (
    TokenformerConfig,
    TransformerConfig,
    grow_config,
    num_parameters,
    ramp_config,
    tokenformer_config,
)
from model.flops import Flops, forward_flops_per_token, training_flops_per_token
from stages.spec import LearningRate

_COLUMNS = {"parameters": 10, "tokens": 6, "steps": 9, "tokens/p": 8, "FLOPs": 7, "cumulative": 10}
"""Headings and least widths, so that the tables of a ladder and its controls are in line."""


@dataclass(frozen=True)
class StagePlan:
    """One stage, worked out."""

    index: int
    name: str
    model: TokenformerConfig | TransformerConfig
    """As it is at the stage's end, fully ramped in."""

    num_parameters: int
    num_embedding_parameters: int
    num_steps: int
    first_step: int
    """Steps of the stages before."""

    tokens_per_step: int
    step_flops: Flops
    """Training FLOPs of one optimizer step."""

    evaluation_flops_per_token: float
    learning_rate: LearningRate
    ramp_steps: int
    added_tokens: tuple[int, int]
    """Parameter tokens that the stage adds to each of Q, K, V and O, and to the FFN; (0, 0) for the first."""

    @property
    def train_tokens(self) -> int:
        """Data tokens of the stage, in whole steps."""
        return self.num_steps * self.tokens_per_step

    @property
    def flops(self) -> Flops:
        """Training FLOPs of the stage."""
        return self.step_flops * self.num_steps


@dataclass(frozen=True)
class ControlPlan:
    """A run to compare a ladder with: a schedule of its own."""

    kind: str
    name: str
    schedule: Schedule


def plan_stages(schedule: Schedule) -> list[StagePlan]:
    """The stages of `schedule`, in order."""
    training = schedule.training
    tokens_per_step = training.batch_size * training.sequence_length
    steps = [_num_steps(stage, tokens_per_step) for stage in schedule.stages]
    plans: list[StagePlan] = []
    for index, stage in enumerate(schedule.stages):
        model = _stage_model(schedule, index)
        first_step = sum(steps[:index])
        plans.append(
            StagePlan(
                index=index,
                name=stage.name,
                model=model,
                num_parameters=num_parameters(model),
                num_embedding_parameters=model.vocab_size * model.hidden_size,
                num_steps=steps[index],
                first_step=first_step,
                tokens_per_step=tokens_per_step,
                step_flops=tokens_per_step * training_flops_per_token(model, training.sequence_length),
                evaluation_flops_per_token=forward_flops_per_token(model, training.sequence_length).total,
                learning_rate=_learning_rate(schedule, steps, index),
                ramp_steps=_ramp_steps(schedule.growth.ramp, steps[index]) if index else 0,
                added_tokens=_added_tokens(schedule, index),
            )
        )
    return plans


def total_flops(plans: list[StagePlan]) -> Flops:
    """Training FLOPs of all stages."""
    return sum((plan.flops for plan in plans), Flops(0.0, 0.0, 0.0))


def plan_controls(schedule: Schedule) -> list[ControlPlan]:
    """The controls of `schedule`, each a schedule of one stage whose FLOPs are a multiple of the whole ladder's.

    The same data, seed, batch and learning-rate block; the control's own warm-up and its own full decay.
    """
    plans = plan_stages(schedule)
    controls = []
    for block in schedule.controls:
        for budget in block.budgets:
            last = schedule.stages[-1]
            update: dict[str, object] = {"controls": []}
            if block.kind == "transformer-scratch":
                shape = equal_size_transformer(plans[-1].model)
                update["model"] = schedule.model.model_copy(
                    update={
                        "family": "transformer",
                        "num_layers": shape.num_layers,
                        "hidden_size": shape.hidden_size,
                        "num_heads": shape.num_heads,
                        "ffn_size": shape.ffn_size,
                    }
                )
                last = last.model_copy(update={"attention_tokens": None, "ffn_tokens": None})
            whole = schedule.model_copy(update=update | {"stages": [_with_steps(last, 1)]})
            steps = round(budget * total_flops(plans).total / plan_stages(whole)[0].step_flops.total)
            suffix = "" if budget == 1 else f"-{budget:g}x"
            name = f"{schedule.name}-control-{block.kind}{suffix}"
            stages = [_with_steps(last, max(1, steps))]
            controls.append(ControlPlan(block.kind, name, whole.model_copy(update={"name": name, "stages": stages})))
    return controls


def equal_size_transformer(model: TokenformerConfig | TransformerConfig) -> TransformerConfig:
    """The Transformer nearest to `model` in parameters, of the same vocabulary, head width and nearly its aspect ratio.

    Tokenformers grow at constant width; a Transformer of that size is wider and deeper, as one would build it.
    """
    aspect = model.hidden_size / model.num_layers
    target = num_parameters(model)

    def shaped(num_layers: int, num_heads: int) -> TransformerConfig:
        width = num_heads * model.head_width
        return TransformerConfig(
            vocab_size=model.vocab_size,
            hidden_size=width,
            num_heads=num_heads,
            num_layers=num_layers,
            ffn_size=4 * width,
            rotary_fraction=model.rotary_fraction,
            rotary_base=model.rotary_base,
        )

    @cache
    def one_and_two_layers(num_heads: int) -> tuple[int, int]:
        return num_parameters(shaped(1, num_heads)), num_parameters(shaped(2, num_heads))

    def size(num_layers: int, num_heads: int) -> int:
        one, two = one_and_two_layers(num_heads)
        return one + (num_layers - 1) * (two - one)

    def nearest(num_layers: int) -> list[tuple[int, int]]:
        heads = range(1, model.num_heads * 4 + 1)
        larger = bisect_left(heads, target, key=lambda num_heads: size(num_layers, num_heads))
        return [(num_layers, num_heads) for num_heads in heads[max(0, larger - 1) : larger + 1]]

    def distance(shape: tuple[int, int]) -> float:
        num_layers, num_heads = shape
        skew = abs(math.log(num_heads * model.head_width / num_layers / aspect))
        return abs(math.log(size(*shape) / target)) + 0.02 * skew + max(0.0, skew - math.log(2))

    depths = range(max(1, model.num_layers // 2), model.num_layers * 4 + 1)
    return shaped(*min((shape for depth in depths for shape in nearest(depth)), key=distance))


def _num_steps(stage: StageBlock, tokens_per_step: int) -> int:
    if stage.train_steps is not None:
        return stage.train_steps
    assert stage.train_tokens is not None
    return max(1, round(stage.train_tokens / tokens_per_step))


def _with_steps(stage: StageBlock, steps: int) -> StageBlock:
    return stage.model_copy(update={"train_tokens": None, "train_steps": steps})


def _stage_model(schedule: Schedule, index: int) -> TokenformerConfig | TransformerConfig:
    block, stage = schedule.model, schedule.stages[index]
    shape: dict[str, Any] = {
        "vocab_size": schedule.vocab_size,
        "hidden_size": block.hidden_size,
        "num_heads": block.num_heads,
        "rotary_fraction": block.rotary_fraction,
        "rotary_base": block.rotary_base,
    }
    if block.family == "transformer":
        ffn_size = block.ffn_size or 4 * block.hidden_size
        return TransformerConfig(num_layers=block.num_layers, ffn_size=ffn_size, **shape)
    assert stage.attention_tokens is not None
    assert stage.ffn_tokens is not None
    if index == 0:
        return tokenformer_config(
            num_layers=block.num_layers,
            attention_tokens=stage.attention_tokens,
            ffn_tokens=stage.ffn_tokens,
            score_function=block.score_function,
            **shape,
        )
    attention_tokens, ffn_tokens = _added_tokens(schedule, index)
    grown = grow_config(_stage_model(schedule, index - 1), attention_tokens=attention_tokens, ffn_tokens=ffn_tokens)
    return ramp_config(grown, 1.0)


def _ramp_steps(share: float, num_steps: int) -> int:
    """At least one step, and one less than the stage has: its last update is at the published formula."""
    return min(max(1, round(share * num_steps)), num_steps - 1)


def _added_tokens(schedule: Schedule, index: int) -> tuple[int, int]:
    if index == 0:
        return 0, 0
    stage, before = schedule.stages[index], schedule.stages[index - 1]
    attention = (stage.attention_tokens or 0) - (before.attention_tokens or 0)
    return attention, (stage.ffn_tokens or 0) - (before.ffn_tokens or 0)


def _learning_rate(schedule: Schedule, steps: list[int], index: int) -> LearningRate:
    block = schedule.learning_rate
    total = sum(steps) if block.span == "ladder" else steps[index]
    after_warmup = max(0, total - block.warmup_steps)
    return LearningRate(
        shape=block.shape,
        peak=block.peak,
        final=block.final,
        warmup_steps=block.warmup_steps,
        decay_steps=min(round(block.decay * total), after_warmup),
        total_steps=total,
        first_step=sum(steps[:index]) if block.span == "ladder" else 0,
    )


def plan_json(schedule: Schedule) -> dict[str, Any]:
    """The plan for scripts: `stages`, `controls` (each with stages of its own) and `total`."""

    def entries(plans: list[StagePlan]) -> list[dict[str, Any]]:
        return [
            {
                "name": plan.name,
                "num_parameters": plan.num_parameters,
                "num_embedding_parameters": plan.num_embedding_parameters,
                "train_tokens": plan.train_tokens,
                "num_steps": plan.num_steps,
                "flops": plan.flops.total,
                "flops_by_part": asdict(plan.flops),
            }
            for plan in plans
        ]

    plans = plan_stages(schedule)
    controls = [
        {"name": control.name, "kind": control.kind, "stages": entries(plan_stages(control.schedule))}
        for control in plan_controls(schedule)
    ]
    total = {"train_tokens": sum(plan.train_tokens for plan in plans), "flops": total_flops(plans).total}
    return {"name": schedule.name, "stages": entries(plans), "controls": controls, "total": total}


def print_plan(schedule: Schedule, console: Console) -> None:
    """The plan as a table a run, the ladder's first. Fits 80 columns."""
    for title, planned in [(schedule.name, schedule)] + [(c.name, c.schedule) for c in plan_controls(schedule)]:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        table.add_column("stage", min_width=12, overflow="fold")
        for heading, width in _COLUMNS.items():
            table.add_column(heading, min_width=width, justify="right", no_wrap=True)
        flops, tokens = 0.0, 0
        for plan in plan_stages(planned):
            flops += plan.flops.total
            tokens += plan.train_tokens
            table.add_row(
                plan.name,
                short_count(plan.num_parameters),
                short_count(plan.train_tokens),
                f"{plan.num_steps:,}",
                f"{tokens / plan.num_parameters:.1f}",
                scientific(plan.flops.total),
                scientific(flops),
            )
        console.print(Text(title or "", style="bold", overflow="fold"), table, "")
    console.print("tokens/p: training tokens so far for each parameter. cumulative: FLOPs so far.")
