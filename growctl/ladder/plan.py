"""`growctl plan`: what a schedule will cost, and the tables that show it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from growctl.ladder.controls import plan_controls
from growctl.ladder.costs import (
    ControlCost,
    Measurements,
    Plan,
    PlannedCost,
    PlannedStart,
    RunCost,
    StageCost,
    device_memory,
    run_cost,
    total_cost,
)
from growctl.ladder.datasets import prepared_sizes
from growctl.ladder.sizes import is_grown, stage_model
from growctl.ladder.warnings import plan_notes, plan_warnings
from growctl.launch.resolve import planned_devices
from growctl.schedule.blocks import Schedule
from growctl.schedule.sources import missing_source_text
from growctl.text.formatting import byte_count, duration, scientific, short_count
from growctl.text.section import Cell, Column, Paragraph, Section, Table, figure
from growctl.text.terminal import print_sections
from model.config import num_parameters
from stages.counted import counted
from stages.engine.memory import Memory


def make_plan(schedule: Schedule, runs_dir: Path | None = None, measurements: Measurements | None = None) -> Plan:
    """Computes the costs of the ladder of `schedule` and of its controls.

    Looks for the text, and in `runs_dir` for its prepared dataset; without `runs_dir` it looks at no files. With
    `measurements`, all times come from them; a size that they lack has no time.
    """
    dataset = prepared_sizes(schedule.data, runs_dir)
    training_tokens = dataset.training_tokens if dataset else schedule.data.approximate_tokens
    devices = planned_devices(schedule)

    def fields(name: str, planned: Schedule) -> dict[str, Any]:
        return run_cost(
            name,
            planned,
            devices,
            training_tokens=training_tokens,
            runs_dir=runs_dir,
            measurements=measurements,
        )

    ladder = fields(schedule.name or "", schedule)
    controls = tuple(
        ControlCost(kind=control.kind, **fields(control.name, control.schedule)) for control in plan_controls(schedule)
    )
    plan = Plan(
        **ladder,
        start=_start(schedule),
        controls=controls,
        total_with_controls=total_cost([ladder["total"], *(control.total for control in controls)]),
        devices=devices,
        device_memory_bytes=device_memory(schedule, devices),
        training_tokens=training_tokens,
        dataset=dataset,
        missing=missing_source_text(schedule.data) if runs_dir else None,
        measurements=measurements,
    )
    return replace(plan, warnings=tuple(plan_warnings(plan)), notes=tuple(plan_notes(plan)))


def _start(schedule: Schedule) -> PlannedStart | None:
    base = schedule.base
    if base is None:
        return None
    return PlannedStart(
        checkpoint=base.path,
        manifest=base.manifest,
        run=base.run,
        num_parameters=base.num_parameters,
        trained_tokens=base.tokens,
        flops=schedule.base_flops,
        grows=is_grown(schedule, 0),
    )


def start_line(schedule: Schedule) -> str | None:
    """The start checkpoint, what the first stage does with it, and its cost; None if the model starts new."""
    start = _start(schedule)
    if start is None:
        return None
    size, name = short_count(start.num_parameters), schedule.stages[0].name
    trained = f", trained in run {start.run}" if start.run else ""
    if start.grows:
        after = short_count(num_parameters(stage_model(schedule, 0)))
        what = f"Stage {name} grows {start.checkpoint}{trained}, from {size} to {after} parameters"
    else:
        what = f"Stage {name} trains on {start.checkpoint}{trained} ({size} parameters)"
    if start.flops is None:
        return f"{what}. The cost of this checkpoint is not known and not counted; set start.flops to count it."
    return f"{what}. The budgets of controls count its {scientific(start.flops)} FLOPs; the tables leave them out."


class _Figure(NamedTuple):
    """A column of figures."""

    heading: str
    value: Callable[[Any], float | None]
    shown: str | Callable[[float], str]
    drop: int = 0
    """The order in which a narrow terminal drops it, as in `Column`."""

    in_total: bool = False
    varying: bool = False
    """Whether it is left out where all rows are alike."""


def _memories(run: RunCost) -> list[Memory]:
    return [stage.memory_bytes for stage in run.stages if stage.memory_bytes]


def _of_total(value: Callable[[PlannedCost], float | None]) -> Callable[[RunCost], float | None]:
    return lambda run: value(run.total)


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _memory_part(name: str) -> Callable[[StageCost], float | None]:
    return lambda stage: getattr(stage.memory_bytes, name, None)


def _hours(cost: PlannedCost) -> float | None:
    return None if cost.device_seconds is None else cost.device_seconds / 3600


_SIZES = (
    _Figure("layers", lambda stage: stage.num_layers, "{}", varying=True),
    _Figure("parameters", lambda stage: stage.num_parameters, short_count),
    _Figure("embedding", lambda stage: stage.num_embedding_parameters, short_count, 1),
    _Figure("tokens", lambda cost: cost.budget_tokens, short_count, in_total=True),
    _Figure("batch", lambda stage: stage.batch_size, "{:,}", varying=True),
    _Figure("context", lambda stage: stage.sequence_length, "{:,}", varying=True),
    _Figure("tokens/step", lambda stage: stage.batch_size * stage.sequence_length, short_count, 6, varying=True),
    _Figure("rate", lambda stage: stage.learning_rate_scale, "x {:.3g}", 7, varying=True),
    _Figure("tokens/p", lambda stage: stage.tokens_per_parameter, _ratio),
    _Figure("epochs", lambda stage: stage.epochs, _ratio),
    _Figure("FLOPs", lambda cost: cost.flops, scientific, in_total=True),
    _Figure("by parameters", lambda cost: cost.flops_by_part.parameters / cost.flops, "{:.0%}", 4, in_total=True),
    _Figure("by attention", lambda cost: cost.flops_by_part.attention / cost.flops, "{:.0%}", 3, in_total=True),
    _Figure("by head", lambda cost: cost.flops_by_part.head / cost.flops, "{:.0%}", 2, in_total=True),
    _Figure("recomputed", lambda cost: cost.recomputed_flops / cost.flops or None, "+{:.0%}", 5, in_total=True),
)

_MEMORY = (
    _Figure("micro-batch", lambda stage: stage.micro_batch_size, "{}"),
    _Figure("largest", lambda stage: stage.largest_micro_batch_size, lambda size: f"{size}" if size else "none", 1),
    *(
        _Figure(part, _memory_part(part), byte_count, drop)
        for part, drop in (("parameters", 6), ("gradients", 5), ("optimizer", 4), ("activations", 3), ("temporary", 2))
    ),
    _Figure("total", _memory_part("total"), byte_count),
    _Figure(
        "measured",
        lambda stage: stage.measured and stage.measured.memory and stage.measured.memory.peak_bytes,
        byte_count,
    ),
)

_SPENT = (
    _Figure("time", lambda cost: cost.wall_seconds, duration, in_total=True),
    _Figure("device-hours", _hours, _amount, 5, in_total=True),
    _Figure("money", lambda cost: cost.money, _amount, in_total=True),
    _Figure("checkpoints", lambda cost: cost.checkpoint_bytes, byte_count, 2, in_total=True),
)

_TIMES = (
    _Figure("devices", lambda stage: stage.num_devices, "{}"),
    _Figure("steps", lambda stage: stage.num_steps, "{:,}", 4),
    _Figure("tokens/s", lambda stage: stage.tokens_per_second, short_count, 1),
    _Figure("MFU", lambda stage: stage.mfu, "{:.1%}", 3),
    *_SPENT,
)

_CONTROLS = (
    _Figure("parameters", lambda run: run.stages[-1].num_parameters, short_count, 7),
    _Figure("tokens", lambda run: run.total.budget_tokens, short_count, in_total=True),
    _Figure("tokens/p", lambda run: run.stages[-1].tokens_per_parameter, _ratio, 4),
    _Figure("epochs", lambda run: run.stages[-1].epochs, _ratio, 2),
    _Figure("FLOPs", lambda run: run.total.flops, scientific, in_total=True),
    _Figure(
        "memory", lambda run: max((m.total for s in run.stages if (m := s.memory_bytes)), default=None), byte_count, 5
    ),
    _Figure("micro-batch", lambda run: run.stages[-1].micro_batch_size, "{}", 3),
    *(spent._replace(value=_of_total(spent.value), drop=6) for spent in _SPENT),
)


def _table(key: str, figures: Sequence[_Figure], rows: Mapping[str, Any], total: tuple[str, Any]) -> Table:
    """A table without the columns that have no known value. `total`: the name of a row of sums, or "", and the sums."""
    columns, cells = [], [[Cell(name)] for name in rows]
    last = [Cell(total[0])]
    for each in figures:
        column = [figure(each.value(row), each.shown) for row in rows.values()]
        alike = all(cell.text == column[0].text for cell in column)
        if all(cell.value is None for cell in column) or (each.varying and alike):
            continue
        columns.append(Column(each.heading, drop=each.drop))
        for row, cell in zip(cells, column, strict=True):
            row.append(cell)
        last.append(figure(each.value(total[1]), each.shown) if each.in_total else Cell(""))
    return Table.of(key, [Column(key, is_number=False), *columns], [*cells, *([last] if total[0] else [])])


def plan_sections(plan: Plan) -> list[Section]:
    """The plan as sections: sizes and compute, memory per device, time and money, controls, warnings and notes."""
    trunk, stages = {stage.name: stage for stage in plan.trunk}, {stage.name: stage for stage in plan.stages}
    total = ("total" if len(stages) > 1 else "", plan.total)
    sizes = _table("stage", _SIZES, stages, total)
    sections = [Section("sizes", "Sizes and compute", (sizes, *(Paragraph(line, "note") for line in _legend(plan))))]
    if any(stage.mixture for stage in plan.stages):
        sections.append(Section("mixture", "Tokens and epochs by source", (_mixture(plan),)))
    sections.append(Section("memory", _memory_title(plan), (_table("stage", _MEMORY, trunk, ("", None)),)))
    sections.append(Section("time", _time_title(plan), (_table("stage", _TIMES, stages, total),)))
    if plan.controls:
        controls = {plan.short_name(control): control for control in plan.controls}
        everything = replace(plan, total=plan.total_with_controls)
        table = _table("control", _CONTROLS, controls, ("all, and the ladder", everything))
        sections.append(Section("controls", "Controls", (table,)))
    remarks = [*(Paragraph(line, "warning") for line in plan.warnings), *(Paragraph(line) for line in plan.notes)]
    if plan.device_memory_bytes is None and not plan.measurements:
        cpu = "The plan is for ranks on CPUs. " if plan.devices.type == "cpu" else ""
        unknown = "Fit, time and price are unknown: set launch.hardware.device and launch.hardware.mfu, or measure with"
        remarks.append(Paragraph(f"{cpu}{unknown} --measure."))
    return [*sections, Section("remarks", "Warnings and notes", tuple(remarks))] if remarks else sections


def print_plan(plan: Plan, console: Console) -> None:
    """Prints the plan. The tables fit 100 columns; narrower terminals get fewer columns."""
    console.print(Text(plan.name, style="bold", overflow="fold"))
    if line := start_line(plan.schedule):
        console.print(Text(line, overflow="fold"))
    console.print()
    print_sections(plan_sections(plan), console)


def _legend(plan: Plan) -> Iterator[str]:
    """What the columns mean; also what a narrow terminal has no column for."""
    total, shares = plan.total, [(stage.token_share, stage.flops_share) for stage in plan.trunk]
    yield (
        "tokens/p: training tokens so far per parameter. by parameters, by attention, by head: shares in the FLOPs. "
        "rate: factor on the learning rate. time: training steps only."
    )
    if again := total.recomputed_flops:
        yield (
            f"recomputed: {scientific(again)} FLOPs (+{again / total.flops:.0%}) by activation checkpointing, no part "
            "of the training FLOPs."
        )
    if len(shares) > 1:
        tokens, flops = (" + ".join(f"{share:.0%}" for share in column) for column in zip(*shares, strict=True))
        yield f"shares of the stages: {tokens} of the ladder's tokens, {flops} of its FLOPs."


def _mixture(plan: Plan) -> Table:
    columns = [Column("stage", is_number=False), Column("source", is_number=False)]
    columns += [Column("share", drop=1), Column("tokens"), Column("epochs")]
    rows = [
        [
            Cell(part.stage),
            Cell(part.source),
            figure(part.share, "{:.1%}"),
            figure(part.budget_tokens, short_count),
            figure(part.epochs, _ratio),
        ]
        for stage in plan.stages
        for part in stage.mixture
        if part.budget_tokens
    ]
    return Table.of("sources", columns, rows)


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
    return f"{what}, at an MFU of {hardware.mfu:.0%}{again}"
