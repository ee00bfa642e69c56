"""A plan shown: as tables, and as JSON for scripts."""

from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from growctl.controls import plan_controls
from growctl.numbers import scientific, short_count
from growctl.plan import StagePlan, plan_stages, total_flops
from growctl.schema import Schedule
from model.transformer_sizes import stack_tokens

_COLUMNS = {"parameters": 10, "tokens": 6, "steps": 9, "tokens/p": 8, "FLOPs": 7, "cumulative": 10}
"""Headings and least widths, so that the tables of a ladder and its controls are in line."""


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
