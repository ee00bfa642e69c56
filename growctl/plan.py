"""What a schedule comes to, from its text alone: sizes, steps, FLOPs, learning rates; and the controls it generates."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from growctl.numbers import scientific, short_count
from growctl.schema import Schedule, StageBlock
from growctl.sizes import added_tokens, num_steps, stage_model
from model.config import TokenformerConfig, TransformerConfig, num_parameters
from model.flops import Flops, forward_flops_per_token, training_flops_per_token
from model.transformer_sizes import stack_tokens
from stages.spec import LearningRate

_COLUMNS = {"parameters": 10, "tokens": 6, "steps": 9, "tokens/p": 8, "FLOPs": 7, "cumulative": 10}
"""Headings and least widths, so that the tables of a ladder and its controls are in line."""

_NO_GROWTH = dict.fromkeys(("layers", "num_layers", "hidden_size", "ffn_size"))
"""What a control's only stage does not say."""


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
    """Steps over which the new keys rise."""

    anneal_steps: int | None
    """Steps over which tau moves to the published formula; None: it stays."""

    attention_tokens: tuple[int, ...]
    """Parameter tokens that the growth before the stage adds to each of Q, K, V and O, layer by layer."""

    ffn_tokens: tuple[int, ...]
    """The same for the FFN."""

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


def plan_stages(schedule: Schedule, steps_done: Sequence[int] = ()) -> list[StagePlan]:
    """The stages of `schedule`, in order.

    `steps_done` are the steps of the stages that are over, which a slope may have ended before their budget.
    """
    training, growth = schedule.training, schedule.growth
    tokens_per_step = training.batch_size * training.sequence_length
    budgets = [num_steps(stage, tokens_per_step) for stage in schedule.stages]
    steps = [*steps_done, *budgets[len(steps_done) :]]
    plans: list[StagePlan] = []
    for index, stage in enumerate(schedule.stages):
        model = stage_model(schedule, index)
        attention_tokens, ffn_tokens = added_tokens(schedule, index)
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
                ramp_steps=_share_of_steps(growth.ramp, steps[index]) if index and growth.tau == "ramp" else 0,
                anneal_steps=_share_of_steps(growth.anneal, steps[index]) if index and growth.tau == "anneal" else None,
                attention_tokens=attention_tokens,
                ffn_tokens=ffn_tokens,
            )
        )
    return plans


def total_flops(plans: list[StagePlan]) -> Flops:
    """Training FLOPs of all stages."""
    return sum((plan.flops for plan in plans), Flops(0.0, 0.0, 0.0))


def plan_controls(schedule: Schedule, steps_done: Sequence[int] = ()) -> list[ControlPlan]:
    """The controls of `schedule`, each a schedule of one stage whose FLOPs are a multiple of the whole ladder's.

    `steps_done` as in `plan_stages`.
    The same data, seed, batch and learning-rate block; the control's own warm-up and its own full decay.
    """
    plans = plan_stages(schedule, steps_done)
    controls = []
    for block in schedule.controls:
        for budget in block.budgets:
            last = schedule.stages[-1].model_copy(update=_NO_GROWTH)
            update: dict[str, object] = {"controls": []}
            if block.kind == "transformer-scratch":
                largest = plans[-1].model
                shape = largest if isinstance(largest, TransformerConfig) else equal_size_transformer(largest)
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


def _with_steps(stage: StageBlock, steps: int) -> StageBlock:
    return stage.model_copy(update={"train_tokens": None, "train_steps": steps})


def _share_of_steps(share: float, num_steps: int) -> int:
    """At least one step, and one less than the stage has: its last update is at the end of the share."""
    return min(max(1, round(share * num_steps)), num_steps - 1)


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


def plan_notes(schedule: Schedule) -> list[str]:
    """What a reader of the figures should know, a sentence each."""
    plans, notes = plan_stages(schedule), []
    if schedule.growth.when == "slope" and len(plans) > 1:
        notes.append(
            "Every stage but the last may end before its budget: as soon as its loss falls by less than "
            f"{schedule.growth.slope:g} nats per FLOP. Tokens and FLOPs, the controls' too, are the most it comes to."
        )
        window, every = schedule.growth.slope_window, schedule.evaluation.every
        fixed = [plan.name for plan in plans[:-1] if (plan.num_steps - 1) // every < window]
        if fixed:
            notes.append(
                f"Too few evaluations for a slope over {window}: {', '.join(fixed)} will train the whole budget; "
                f"evaluation.every is {every} steps."
            )
    if schedule.growth.operator == "stack" and len(plans) > 1:
        tokens = stack_tokens(plans[-1].num_parameters, total_flops(plans).total)
        notes.append(
            f"G_stack's timing formula, fitted to large runs, would stack after {short_count(round(tokens))} tokens; "
            f"this schedule does after {short_count(plans[0].train_tokens)}."
        )
    return notes


def plan_json(schedule: Schedule) -> dict[str, Any]:
    """The plan for scripts: `stages`, `controls` (each with stages of its own), `total` and `notes`."""

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
    stages, notes = entries(plans), plan_notes(schedule)
    return {"name": schedule.name, "stages": stages, "controls": controls, "total": total, "notes": notes}


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
    for note in plan_notes(schedule):
        console.print(note, highlight=False)
