"""Formats a plan as tables."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from growctl.ladder.costs import PlanCosts, StageCost, Total, everything, plan_costs
from growctl.ladder.stage_plans import StagePlan
from growctl.ladder.start_line import start_line
from growctl.ladder.warnings import plan_notes, plan_warnings
from growctl.schedule.blocks import Schedule
from growctl.text.colours import FAINT, WARNING
from growctl.text.first_use import FirstUse
from growctl.text.formatting import byte_count, duration, scientific, short_count
from growctl.text.name_cell import NameCell
from stages.counted import counted

UNKNOWN = "-"
MOST_NAME = 26
"""Widest column of names; longer names break at hyphens."""

_SHARES = {"parameters ": "parameters", "attention": "attention", "head": "output head"}
"""The columns with shares in the FLOPs, and what their title calls them."""

Row = dict[str, str]
"""The cells of a table's row by column heading."""


def print_plan(schedule: Schedule, console: Console, costs: PlanCosts | None = None) -> None:
    """Prints the plan: tables of sizes and compute, memory per device, time and money, and controls; then the warnings.

    The tables fit 100 columns; narrower terminals get fewer columns. Columns without any known value are left out.
    """
    costs = costs or plan_costs(schedule)
    console.print(Text(schedule.name or "", style="bold", overflow="fold"))
    if line := start_line(schedule):
        console.print(Text(line, overflow="fold"), "")
    for title, rows, narrower in _tables(costs):
        _print_table(console, title, rows, narrower)
    console.print(Text(_legend(costs), style=FAINT))
    if line := _shares_line(costs):
        console.print(Text(line, style=FAINT))
    if costs.memory_bytes is None and not costs.measurements:
        cpu = "The plan is for ranks on CPUs. " if costs.devices.type == "cpu" else ""
        console.print(
            f"{cpu}Fit, time and price are unknown: set launch.hardware.device and launch.hardware.mfu, or measure "
            "with --measure.",
            highlight=False,
        )
    words = FirstUse()
    for warning in plan_warnings(costs):
        console.print(Text("warning: ", style=f"bold {WARNING}") + Text(words.explained(warning), style=""))
    for note in plan_notes(costs):
        console.print(Text(words.explained(note)))


def _tables(costs: PlanCosts) -> Iterator[tuple[str, list[Row], tuple[str, ...]]]:
    """The title and rows of each table, and the columns to drop on a narrow terminal, in that order."""
    yield (
        "sizes and compute",
        _size_rows(costs),
        ("embedding", "head", "attention", "parameters ", "recomputed", "tokens/step", "rate"),
    )
    if costs.ladder.mixture:
        yield "tokens and epochs by source", _mixture_rows(costs), ("share",)
    yield (
        _memory_title(costs),
        _memory_rows(costs),
        ("largest", "temporary", "activations", "optimizer", "gradients", "parameters"),
    )
    yield _time_title(costs), _time_rows(costs), ("tokens/s", "checkpoints", "MFU", "steps", "device-hours")
    if costs.controls:
        yield (
            "controls",
            _control_rows(costs),
            ("checkpoints", "epochs", "micro-batch", "tokens/p", "memory", "device-hours", "parameters"),
        )


def _legend(costs: PlanCosts) -> str:
    """What the columns mean; also what a narrow terminal has no column for."""
    total = costs.ladder.total
    parts = ["tokens/p: training tokens so far per parameter."]
    if any("rate" in row for row in _step_cells([cost.plan for cost in costs.ladder.stages])):
        parts.append("rate: factor on the learning rate.")
    if again := total.recomputed_flops:
        parts.append(
            f"recomputed: {scientific(again)} FLOPs (+{again / total.flops.total:.0%}) by activation checkpointing, no "
            "part of the training FLOPs."
        )
    if total.seconds is not None:
        parts.append("time: training steps only.")
    return " ".join(parts)


def _shares_line(costs: PlanCosts) -> str:
    """The share of each stage in the tokens and the FLOPs of the ladder, without its releases; empty for one stage."""
    shares = [cost.plan.shares_of([other.plan for other in costs.ladder.stages]) for cost in costs.ladder.stages]
    if len(shares) == 1:
        return ""
    tokens, flops = (" + ".join(f"{share:.0%}" for share in column) for column in zip(*shares, strict=True))
    return f"shares of the stages: {tokens} of the ladder's tokens, {flops} of its FLOPs."


def _size_rows(costs: PlanCosts) -> list[Row]:
    base = costs.ladder.schedule.base
    rows, base_tokens = [], (base.tokens or 0) if base else 0
    deepens = len({cost.plan.model.num_layers for cost in costs.ladder.parts}) > 1
    steps = _step_cells([cost.plan for cost in costs.ladder.stages])
    for cost in costs.ladder.parts:
        plan = cost.plan
        tokens = base_tokens + plan.first_token + plan.train_tokens
        row = {
            "stage": plan.name,
            **({"layers": str(plan.model.num_layers)} if deepens else {}),
            "parameters": short_count(plan.num_parameters),
            "embedding": short_count(plan.num_embedding_parameters),
            "tokens": short_count(plan.train_tokens),
            **(steps[plan.index] if steps else {}),
            "tokens/p": _ratio(tokens / plan.num_parameters),
            "epochs": _or_unknown(cost.epochs, _ratio),
        }
        rows.append(row | _compute(plan))
    if len(rows) > 1:
        total = costs.ladder.total
        rows.append({"stage": "total", "tokens": short_count(total.train_tokens)} | _compute(total))
    return rows


def _step_cells(plans: Sequence[StagePlan]) -> list[Row]:
    """What a step of each stage reads and the factor on its learning rate, in the columns in which stages differ."""
    rows = [
        {
            "batch": f"{plan.batch.batch_size:,}",
            "context": f"{plan.batch.sequence_length:,}",
            "tokens/step": short_count(plan.tokens_per_step),
            "rate": f"x {plan.learning_rate.scale:.3g}",
        }
        for plan in plans
    ]
    return [{name: cell for name, cell in row.items() if any(other[name] != cell for other in rows)} for row in rows]


def _compute(cost: StagePlan | Total) -> Row:
    """The cells for FLOPs, their shares by part, and what is recomputed beyond them."""
    flops, again = cost.flops, cost.recomputed_flops
    parts = {"parameters ": flops.parameters, "attention": flops.attention, "head": flops.head}
    shares = {name: f"{part / flops.total:.0%}" for name, part in parts.items()}
    return {
        "FLOPs": scientific(flops.total),
        **shares,
        "recomputed": f"+{again / flops.total:.0%}" if again else UNKNOWN,
    }


def _mixture_rows(costs: PlanCosts) -> list[Row]:
    """One row per stage and source that it reads."""
    return [
        {
            "stage": part.stage,
            "source": part.source,
            "share": f"{part.share:.1%}",
            "tokens": short_count(part.train_tokens),
            "epochs": _or_unknown(part.epochs, _ratio),
        }
        for part in costs.ladder.mixture
        if part.train_tokens
    ]


def _memory_title(costs: PlanCosts) -> str:
    launch = costs.ladder.schedule.launch
    capacity = f" of {byte_count(costs.memory_bytes)}" if costs.memory_bytes else ""
    offload = ", optimizer offloaded" if launch.offload == "optimizer" else ""
    every = launch.recompute_every
    recomputed = "" if every is None else f", {counted(every, 'block')} recomputed at a time"
    return f"memory per device{capacity}: ZeRO-{launch.zero_stage}{offload}{recomputed}, {costs.precision}"


def _time_title(costs: PlanCosts) -> str:
    hardware = costs.ladder.schedule.launch.hardware
    what = "time" if hardware.price_per_device_hour is None else "time and money"
    if costs.measurements:
        return f"{what}, measured on {costs.measurements.where}"
    known = hardware.mfu is not None and hardware.peak_flops(costs.precision) is not None
    again = " without recomputation" if costs.ladder.total.recomputed_flops else ""
    return f"{what}, at an MFU of {hardware.mfu:.0%}{again}" if known else "devices and disk"


def _memory_rows(costs: PlanCosts) -> list[Row]:
    rows = []
    for cost in costs.ladder.stages:
        parts = ("parameters", "gradients", "optimizer", "activations", "temporary", "total")
        sizes = {part: byte_count(getattr(cost.memory, part)) if cost.memory else UNKNOWN for part in parts}
        measured = cost.measured.memory["peak_bytes"] if cost.measured and cost.measured.memory else None
        rows.append(
            {
                "stage": cost.plan.name,
                "micro-batch": _or_unknown(cost.micro_batch_size, str),
                "largest": _or_unknown(cost.largest_micro_batch_size, lambda size: str(size) if size else "none"),
                **sizes,
                "measured": _or_unknown(measured, byte_count),
            }
        )
    return rows


def _time_rows(costs: PlanCosts) -> list[Row]:
    rows = [
        {
            "stage": cost.plan.name,
            "devices": str(cost.num_devices),
            "steps": f"{cost.plan.num_steps:,}",
            "tokens/s": _or_unknown(cost.tokens_per_second, short_count),
            "MFU": _or_unknown(cost.mfu, "{:.1%}".format),
            **_spent(cost),
        }
        for cost in costs.ladder.parts
    ]
    return [*rows, {"stage": "total"} | _spent(costs.ladder.total)] if len(rows) > 1 else rows


def _control_rows(costs: PlanCosts) -> list[Row]:
    """One row per control, with the size of its last and largest stage; then the sum over all runs and the ladder."""
    rows = []
    for control in costs.controls:
        last = control.stages[-1]
        fullest = max((cost.memory.total for cost in control.stages if cost.memory), default=None)
        row = {
            "control": control.name.removeprefix(f"{costs.ladder.name}-control-"),
            "parameters": short_count(last.plan.num_parameters),
            "tokens": short_count(control.total.train_tokens),
            "tokens/p": _ratio(control.total.train_tokens / last.plan.num_parameters),
            "epochs": _or_unknown(last.epochs, _ratio),
            "FLOPs": scientific(control.total.flops.total),
            "memory": _or_unknown(fullest, byte_count),
            "micro-batch": _or_unknown(last.micro_batch_size, str),
        }
        rows.append(row | _spent(control.total))
    both = everything(costs)
    total = {"control": "all, and the ladder", "tokens": short_count(both.train_tokens)}
    return [*rows, total | {"FLOPs": scientific(both.flops.total)} | _spent(both)]


def _spent(cost: StageCost | Total) -> Row:
    return {
        "time": _or_unknown(cost.seconds, duration),
        "device-hours": _or_unknown(cost.device_hours, _amount),
        "money": _or_unknown(cost.money, _amount),
        "checkpoints": byte_count(cost.checkpoint_bytes),
    }


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _or_unknown(value: Any, shown: Callable[[Any], str]) -> str:
    return UNKNOWN if value is None else shown(value)


def _print_table(console: Console, title: str, rows: Sequence[Row], narrower: Sequence[str]) -> None:
    """Prints a table without the columns that have no known value.

    If it is too wide, headings break at hyphens; then columns are dropped, those in `narrower` first. A row without a
    value for a column leaves the cell empty.
    """
    headings = [h for h in rows[0] if any(row.get(h, UNKNOWN) != UNKNOWN for row in rows)]
    table, unlimited = _table(title, headings, rows), console.options.update(width=10_000)
    unwanted = [None, *narrower, *reversed(headings[1:])]
    while unwanted and Measurement.get(console, unlimited, table).maximum > console.width:
        first = unwanted.pop(0)
        headings = [heading for heading in headings if heading != first]
        table = _table(title, headings, rows, broken=True)
    if shares := [name for heading, name in _SHARES.items() if heading in headings]:
        table.title = f"{title}: FLOPs, and their shares in {', '.join(shares)}"
    console.print(table, "")


def _table(title: str, headings: Sequence[str], rows: Sequence[Row], broken: bool = False) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title=title,
        title_justify="left",
    )
    name, *others = headings
    table.add_column(name, min_width=8, max_width=MOST_NAME)
    for heading in others:
        shown = heading.strip().replace("-", "-\n") if broken else heading.strip()
        table.add_column(shown, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(NameCell(row.get(name, "")), *(row.get(heading, "") for heading in others))
    return table
