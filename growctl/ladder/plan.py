"""`growctl plan`: what a schedule will cost, and the tables that show it; and what `growctl validate` says of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from growctl.ladder.conditions import earlier_runs
from growctl.ladder.controls import plan_controls
from growctl.ladder.costs import ControlCost, Measurements, Plan, PlannedCost, run_cost, total_cost
from growctl.ladder.datasets import known_sizes
from growctl.ladder.stage_plans import plan_stages
from growctl.ladder.warnings import plan_notes, plan_warnings
from growctl.launch.resolve import planned_devices
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.schedule.sources import missing_data
from growctl.text.formatting import byte_count, duration, scientific, short_count
from growctl.text.section import Cell, Column, Paragraph, Section, Table, figure, rows_of
from growctl.text.terminal import print_sections
from stages.counted import counted


def make_plan(schedule: Schedule, runs_dir: Path | None = None, measurements: Measurements | None = None) -> Plan:
    """Computes the costs of the ladder of `schedule` and of its controls.

    Looks for the text, and in `runs_dir` for its prepared dataset; without `runs_dir` it looks at no files. With
    `measurements`, all times come from them; a size that they lack has no time.
    """
    devices, sizes = planned_devices(schedule), known_sizes(schedule, runs_dir)
    of_all = (devices, sizes, measurements, list(earlier_runs(runs_dir)) if runs_dir else [])
    ladder = run_cost(schedule.name or "", schedule, *of_all)
    controls = tuple(
        ControlCost(kind=control.kind, **run_cost(control.name, control.schedule, *of_all))
        for control in plan_controls(schedule)
    )
    plan = Plan(
        **ladder,
        controls=controls,
        total_with_controls=total_cost([ladder["total"], *(control.total for control in controls)]),
        devices=devices,
        sizes=sizes,
        missing=missing_data(schedule.data, RunsPaths(runs_dir).datasets) if runs_dir else None,
        measurements=measurements,
    )
    return replace(plan, warnings=tuple(plan_warnings(plan)), notes=tuple(plan_notes(plan, runs_dir)))


def start_line(schedule: Schedule) -> str | None:
    """The start checkpoint, what the first stage does with it, and its cost; None if the model starts new."""
    base, flops = schedule.base, schedule.base_flops
    if base is None:
        return None
    first = plan_stages(schedule)[0]
    does = "grows" if first.is_grown else "trains"
    trained = f", trained in run {base.run}" if base.run else ""
    sizes = f"{short_count(base.num_parameters)} -> {short_count(first.num_parameters)} parameters"
    what = f"Stage {first.name} {does} {base.path}{trained}: {sizes}"
    cost = "cost is not known" if flops is None else f"{scientific(flops)} FLOPs are paid for"
    return f"{what}. Its {cost}: the tables and the budgets of controls count from now on."


class _Figure(NamedTuple):
    """A column of figures."""

    heading: str
    path: str
    """The dotted path of the figure in a `StageCost` or `RunCost`."""
    shown: str | Callable[[float], str] = "{:,}"
    drop: int = 0
    """The order in which a narrow terminal drops it, as in `Column`."""


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


_IF_DIFFERENT = ("layers", "batch", "context", "rate")
"""Columns that are left out where all rows are alike."""

_SIZES = (
    _Figure("layers", "num_layers"),
    _Figure("parameters", "num_parameters", short_count),
    _Figure("read", "num_read_parameters", short_count),
    _Figure("embedding", "num_embedding_parameters", short_count, 1),
    _Figure("tokens", "budget_tokens", short_count),
    _Figure("batch", "batch_size"),
    _Figure("context", "sequence_length"),
    _Figure("rate", "learning_rate_scale", "x {:.3g}", 3),
    _Figure("tokens/p", "tokens_per_parameter", _ratio),
    _Figure("epochs", "epochs", _ratio),
    _Figure("FLOPs", "flops", scientific),
    _Figure("reused", "reused_flops", scientific),
    _Figure("recomputed", "recomputed_flops", scientific, 2),
)

_MEMORY = (
    _Figure("micro-batch", "micro_batch_size"),
    _Figure("largest", "largest_micro_batch_size", lambda size: f"{size}" if size else "none", 1),
    _Figure("parameters", "memory_bytes.parameters", byte_count, 6),
    _Figure("gradients", "memory_bytes.gradients", byte_count, 5),
    _Figure("optimizer", "memory_bytes.optimizer", byte_count, 4),
    _Figure("activations", "memory_bytes.activations", byte_count, 3),
    _Figure("temporary", "memory_bytes.temporary", byte_count, 2),
    _Figure("total", "memory_bytes.total", byte_count),
    _Figure("host", "memory_bytes.host", byte_count),
    _Figure("measured", "measured.memory.peak_bytes", byte_count),
)

_SPENT = (
    _Figure("time", "wall_seconds", duration),
    _Figure("device-hours", "device_seconds", lambda seconds: _amount(seconds / 3600), 5),
    _Figure("money", "money", _amount),
    _Figure("checkpoints", "checkpoint_bytes", byte_count, 2),
)

_TIMES = (
    _Figure("devices", "num_devices"),
    _Figure("steps", "num_steps", "{:,}", 4),
    _Figure("tokens/s", "tokens_per_second", short_count, 1),
    _Figure("MFU", "mfu", "{:.1%}", 3),
    *_SPENT,
)

_CONTROLS = (
    _Figure("parameters", "largest.num_parameters", short_count, 5),
    _Figure("tokens", "total.budget_tokens", short_count),
    _Figure("tokens/p", "largest.tokens_per_parameter", _ratio, 3),
    _Figure("epochs", "largest.epochs", _ratio, 1),
    _Figure("FLOPs", "total.flops", scientific),
    _Figure("reused", "total.reused_flops", scientific),
    _Figure("memory", "largest.memory_bytes.total", byte_count, 4),
    _Figure("micro-batch", "largest.micro_batch_size", "{:,}", 2),
    *(spent._replace(path=f"total.{spent.path}", drop=6) for spent in _SPENT),
)


def _value(record: Any, path: str) -> Any:
    return reduce(lambda found, name: getattr(found, name, None), path.split("."), record)


def _table(key: str, figures: Sequence[_Figure], rows: Mapping[str, Any], total: tuple[str, Any] = ("", None)) -> Table:
    """A table without the columns that have no known value. `total`: the name of a row of sums, or "", and the sums."""
    columns, cells = [Column(key, is_number=False)], [[Cell(name)] for name in rows]
    last = [Cell(total[0])]
    for each in figures:
        column = [figure(_value(row, each.path), each.shown) for row in rows.values()]
        alike = len({cell.text for cell in column}) == 1
        if not any(cell.value for cell in column) or (alike and each.heading in _IF_DIFFERENT):
            continue
        columns.append(Column(each.heading, drop=each.drop))
        for row, cell in zip(cells, column, strict=True):
            row.append(cell)
        is_summed = each.path.removeprefix("total.") in PlannedCost.__dataclass_fields__
        last.append(figure(_value(total[1], each.path), each.shown) if is_summed else Cell(""))
    return Table.of(key, columns, [*cells, *([last] if total[0] else [])])


def plan_sections(plan: Plan) -> list[Section]:
    """The plan as sections: sizes and compute, memory per device, time and money, controls, warnings and notes."""
    trunk, stages = {stage.name: stage for stage in plan.trunk}, {stage.name: stage for stage in plan.stages}
    total = ("total" if len(stages) > 1 else "", plan.total)
    legend = Paragraph("tokens/p: training tokens so far per parameter. time: training steps only.", "note")
    sections = [Section("sizes", "Sizes and compute", (_table("stage", _SIZES, stages, total), legend))]
    if any(stage.mixture for stage in plan.stages):
        sections.append(Section("mixture", "Tokens and epochs by source", (_mixture(plan),)))
    sections.append(Section("memory", _memory_title(plan), (_table("stage", _MEMORY, trunk),)))
    sections.append(Section("time", _time_title(plan), (_table("stage", _TIMES, stages, total),)))
    if plan.controls:
        controls = {control.name.removeprefix(f"{plan.name}-control-"): control for control in plan.controls}
        everything = replace(plan, total=plan.total_with_controls)
        table = _table("control", _CONTROLS, controls, ("all, and the ladder", everything))
        sections.append(Section("controls", "Controls", (table,)))
    remarks = [*(Paragraph(line, "warning") for line in plan.warnings), *(Paragraph(line) for line in plan.notes)]
    if plan.device_memory_bytes is None and not plan.measurements:
        cpu = "The plan is for ranks on CPUs. " if plan.devices.type == "cpu" else ""
        unknown = (
            "Fit, price and exact time are unknown: set launch.hardware.device and launch.hardware.mfu, or measure with"
        )
        remarks.append(Paragraph(f"{cpu}{unknown} --measure."))
    return [*sections, Section("remarks", "Warnings and notes", tuple(remarks))] if remarks else sections


def print_plan(plan: Plan, console: Console) -> None:
    """Prints the plan. The tables fit 100 columns; narrower terminals get fewer columns."""
    console.print(Text(plan.name, style="bold", overflow="fold"))
    if line := start_line(plan.schedule):
        console.print(Text(line, overflow="fold"))
    console.print()
    print_sections(plan_sections(plan), console)


def _mixture(plan: Plan) -> Table:
    columns = [
        Column("stage", is_number=False, cell=lambda part: Cell(part.stage)),
        Column("source", is_number=False, cell=lambda part: Cell(part.source)),
        Column("share", drop=1, cell=lambda part: figure(part.share, "{:.1%}")),
        Column("tokens", cell=lambda part: figure(part.budget_tokens, short_count)),
        Column("epochs", cell=lambda part: figure(part.epochs, _ratio)),
    ]
    parts = (part for stage in plan.stages for part in stage.mixture if part.budget_tokens)
    return Table.of("sources", columns, rows_of(columns, parts))


def _memory_title(plan: Plan) -> str:
    launch, precision = plan.schedule.launch, plan.devices.precision(plan.schedule.training.precision)
    capacity = f" of {byte_count(plan.device_memory_bytes)}" if plan.device_memory_bytes else ""
    offload = ", optimizer offloaded" if launch.offload == "optimizer" else ""
    every = launch.recompute_every
    recomputed = "" if every is None else f", {counted(every, 'block')} recomputed at a time"
    return f"Memory per device{capacity}: ZeRO-{launch.zero_stage}{offload}{recomputed}, {precision}"


def _time_title(plan: Plan) -> str:
    hardware = plan.schedule.launch.hardware
    what = "Time" if hardware.price_per_device_hour is None else "Time and money"
    if plan.measurements:
        return f"{what}, measured on {plan.measurements.where}"
    if plan.total.wall_seconds is None:
        return "Devices and disk"
    again = " without recomputation" if plan.total.recomputed_flops else ""
    return f"{what}, at an MFU of {hardware.mfu:.0%}{again} (assumed, not measured: see --measure)"


@dataclass(frozen=True)
class CheckedSchedule:
    """A schedule that was checked."""

    file: str
    """The file or the name, as the user gave it."""

    valid: bool
    message: str | None = None
    """What is wrong; null if it is valid."""

    name: str | None = None
    """The schedule's name; null if it is invalid."""

    warnings: tuple[str, ...] = ()
    """Warnings about its controls, its steps, its prepared dataset and ranks, one sentence or two each."""


@dataclass(frozen=True)
class ValidateDocument:
    """The schedules that were checked, in the order in which they were given."""

    schedules: tuple[CheckedSchedule, ...]
