"""How the runs of a report were made: what each growth did, environments, schedules and commands."""

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from growctl.ledger.lines import RunStart, read_lines
from growctl.runs.runs import EvaluationPoint, RunReport, StageReport
from growctl.runs_dir import RunPaths
from growctl.text.formatting import growth_words, jump_text, scientific, short_count
from growctl.text.section import Cell, Column, Listing, Paragraph, Rows, Section, Table, figure
from model.errors import UserError
from model.policy import EXACT_GROWTH
from stages.checkpoint.lineage import GrowthRecord
from stages.checkpoint.manifest import read_manifest
from stages.counted import counted

Outcome = Literal["preserved", "moved as declared", "moved", "broke its promise", "unknown"]
TOLERANCE = 1e-3
"""Nats per token by which a loss may exceed another and still count as equal: rounding alone moves a loss by more."""

_WHY: dict[str, str] = {
    "broke its promise": f"Its policy preserves the function: the loss should move by at most {EXACT_GROWTH:g} nats.",
    "moved as declared": "Its policy does not promise to preserve the function.",
    "moved": "Its checkpoint is not here, so what its policy promises is not known.",
    "unknown": "The loss before or right after the growth was not measured.",
}


@dataclass(frozen=True)
class GrowthEffect:
    """One growth, and what it did to the validation loss, beside what its stage has of it: losses and jump."""

    stage: str
    """The stage that trains the grown model."""
    num_parameters_before: int
    record: GrowthRecord | None
    """As the manifest of the grown checkpoint has it; None if that is not here."""
    outcome: Outcome
    highest: float | None
    """The highest loss from step 0 on, in nats per token, until the old one was reached again."""
    regained_after_tokens: int | None
    """Data tokens of the stage up to the first evaluation that had the old loss again, within 0.001 nats; 0 if none was
    above it, None if it was not reached so far."""
    regained_after_flops: float | None


def growths(run: RunReport) -> tuple[GrowthEffect, ...]:
    """The growths between the stages of a run, and from its start checkpoint, that have happened."""
    sizes = [*([run.base.num_parameters] if run.base else []), *(stage.num_parameters for stage in run.stages)]
    paths = {name: stage.initial for _, name, stage in RunPaths(run.directory).stages_found()}
    happened = []
    for stage, (before, after) in zip(run.stages if run.base else run.stages[1:], pairwise(sizes), strict=True):
        if before == after or (stage.loss_after_growth is None and not stage.train_tokens):
            continue
        record = None
        with suppress(UserError, OSError):
            record = read_manifest(paths.get(stage.name, Path())).lineage.growth
        highest, step = _recovery(stage, [point for point in run.points if point.stage == stage.name])
        happened.append(
            GrowthEffect(
                stage=stage.name,
                num_parameters_before=before,
                record=record,
                outcome=_outcome(stage.jump, record.preserves if record else None),
                highest=highest,
                regained_after_tokens=None if step is None else step * stage.tokens_per_step,
                regained_after_flops=None if step is None else step * stage.step_flops,
            )
        )
    return tuple(happened)


def _recovery(stage: StageReport, points: Sequence[EvaluationPoint]) -> tuple[float | None, int | None]:
    """The highest loss of a stage until the one from before its growth is reached again, and the step of that."""
    if stage.loss_before_growth is None or stage.loss_after_growth is None:
        return None, None
    limit = stage.loss_before_growth + TOLERANCE
    measured = [(0, stage.loss_after_growth), *((point.step, point.loss) for point in points if point.step)]
    above = next((place for place, (_, loss) in enumerate(measured) if loss > limit), None)
    if above is None:
        return max(loss for _, loss in measured), 0
    back = next((place for place in range(above, len(measured)) if measured[place][1] <= limit), None)
    return max(loss for _, loss in measured[:back]), None if back is None else measured[back][0]


def _outcome(jump: float | None, preserves: bool | None) -> Outcome:
    if jump is None or abs(jump) <= EXACT_GROWTH:
        return "unknown" if jump is None else "preserved"
    return "moved" if preserves is None else "broke its promise" if preserves else "moved as declared"


_GROWTH_COLUMNS = (
    *(Column("growth to", is_number=False), Column("parameters", drop=2), Column("policy", is_number=False, drop=1)),
    *map(Column, ("loss before", "loss after", "jump", "highest", "tokens to regain", "FLOPs to regain")),
    Column("verdict", is_number=False),
)
_ABOUT = (
    "Losses are validation losses in nats: before the growth, right after it, and the highest until the old "
    "loss is reached again. Tokens and FLOPs to regain: of the new stage, up to the first evaluation within 0.001 nats."
)


def growth_section(runs: Sequence[RunReport]) -> Section | None:
    """The growths of all runs; None without a growth."""
    groups = []
    for run in runs:
        stages = {stage.name: stage for stage in run.stages}
        rows = tuple(_growth_row(growth, stages[growth.stage]) for growth in growths(run))
        groups += [Rows(rows, run.name)] if rows else []
    table = Table("growths", _GROWTH_COLUMNS, tuple(groups), _ABOUT)
    return Section("growths", "What each growth did to the loss", (table,), in_terminal=False) if groups else None


def _growth_row(growth: GrowthEffect, stage: StageReport) -> tuple[Cell, ...]:
    policy = growth_words(growth.record) if growth.record else ""
    sizes = f"{short_count(growth.num_parameters_before)} to {short_count(stage.num_parameters)}"
    new_layers = growth.record.new_layers if growth.record else 0
    sizes += f", {counted(new_layers, 'new layer')}" if new_layers else ""
    costs = ((growth.regained_after_tokens, short_count), (growth.regained_after_flops, scientific))
    never = "-" if growth.highest is None else "not yet"
    return (
        *(Cell(growth.stage), Cell(sizes, stage.num_parameters)),
        Cell(policy or "-", why="" if policy else "Its checkpoint is not here."),
        *(figure(loss, "{:.6f}") for loss in (stage.loss_before_growth, stage.loss_after_growth)),
        *(figure(stage.jump, jump_text), figure(growth.highest)),
        *(Cell(never if cost is None else shown(cost) if cost else "at once", cost) for cost, shown in costs),
        Cell(growth.outcome, why=_WHY.get(growth.outcome, "")),
    )


_SOFTWARE = {"growctl": "growctl", "python": "Python", "torch": "torch", "deepspeed": "DeepSpeed"}


def software(run: RunReport) -> dict[str, tuple[str, ...]]:
    """The versions of each package, and of Python, with which a ladder was started; empty if they are not known."""
    ladder = RunPaths(run.directory.with_name(run.control_of) if run.control_of else run.directory)
    starts = read_lines(ladder.starts, RunStart)
    by_name = {name: [start.software[name] for start in starts if name in start.software] for name in _SOFTWARE}
    return {name: tuple(dict.fromkeys(versions)) for name, versions in by_name.items() if versions}


def environment_section(runs: Sequence[RunReport]) -> Section | None:
    """What the runs were trained on, each environment once; None if nothing was trained."""
    trained_in: dict[str, list[str]] = {}
    for run in (run for run in runs if run.machines):
        machines = [f"{count} x {device} in {precision}" for device, count, precision in run.machines]
        zero_stage = run.conditions.get("launch.zero_stage")
        machines += [f"ZeRO stage {zero_stage}"] if zero_stage else []
        versions = [f"{_SOFTWARE[name]} {' and '.join(numbers)}" for name, numbers in software(run).items()]
        environment = f"{', '.join(machines)}; {', '.join(versions) or 'versions not recorded'}"
        trained_in.setdefault(environment, []).append(run.name)
    everyone = f"All {len(runs)} runs"
    parts = tuple(
        Paragraph(f"{everyone if len(names) == len(runs) > 1 else ', '.join(names)}: {environment}.")
        for environment, names in trained_in.items()
    )
    return Section("environment", "Environment", parts, in_terminal=False, is_detail=True) if parts else None


_REMOVED = "***"
_SECRETS = (
    (re.compile(r"\b([A-Z0-9_]*(?:TOKEN|KEY|SECRET|PASSWORD)[A-Z0-9_]*)(=|: *)[^\s,}\"']+"), rf"\1\2{_REMOVED}"),
    (re.compile(r"(?<=://)[^\s\"'<>]*@"), f"{_REMOVED}@"),
    (re.compile(r"(://[^\s?\"'<>]*)\?[^\s\"'<>]+"), rf"\1?{_REMOVED}"),
)
"""Secrets by their looks, as values of variables with KEY or so in their names and in URLs, and what a report has in
their place."""


def without_secrets(text: str) -> str:
    """A command's word or a schedule, as a report shows it to others."""
    for shape, replacement in _SECRETS:
        text = shape.sub(replacement, text)
    return text


def command_section(runs: Sequence[RunReport], report: Sequence[str] = ()) -> Section | None:
    """The commands of each ladder, each once, and the command `report`; None if none is known."""
    parts: list[Listing] = []
    for ladder in (run for run in runs if run.control is None):
        started: dict[str, str] = {}
        for start in read_lines(RunPaths(ladder.directory).starts, RunStart):
            started.setdefault(_shown(start.command), start.at)
        parts += [Listing(f"{ladder.name}, started {at}", text, is_command=True) for text, at in started.items()]
    parts += [Listing("this report", _shown(report), is_command=True)] if report else []
    return Section("commands", "Commands", tuple(parts), in_terminal=False) if parts else None


def _shown(command: Sequence[str]) -> str:
    return shlex.join(map(without_secrets, command))


def schedule_section(runs: Sequence[RunReport]) -> Section | None:
    """The schedules of the ladders; None if none is here. `growctl compare` shows in what two of them differ."""
    parts: list[Listing] = []
    for ladder in (run for run in runs if run.control is None):
        with suppress(OSError, ValueError):
            text = RunPaths(ladder.directory).schedule.read_text(encoding="utf-8")
            parts.append(Listing(f"schedule of {ladder.name}", without_secrets(text)))
    return Section("schedule", "Schedule", tuple(parts), in_terminal=False, is_detail=True) if parts else None
