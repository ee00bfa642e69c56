"""How the runs of a report were made: what each growth did, environments, schedules and commands."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import yaml

from growctl.ledger.starts import read_starts
from growctl.redaction import REMOVED, Redaction
from growctl.runs.runs import EvaluationPoint, RunReport, StageReport
from growctl.runs_dir import RunPaths
from growctl.text.formatting import jump_text, scientific, short_count
from growctl.text.section import Cell, Column, Listing, Paragraph, Part, Rows, Section, Table, figure
from model.errors import UserError
from model.policy import EXACT_GROWTH
from stages.checkpoint.manifest import read_manifest
from stages.counted import counted
from stages.metrics import read_events
from stages.plain_yaml import read_yaml

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
class Growth:
    """One growth, and what it did to the validation loss, beside what its stage has of it: losses and jump."""

    stage: str
    """The stage that trains the grown model."""
    num_parameters_before: int
    new_layers: int | None
    """Layers that a tokenformer gained; None if the checkpoint is not here."""
    policy: dict[str, Any]
    """As the manifest of the grown checkpoint has it; empty if that is not here."""
    preserves: bool | None
    """Whether the policy promises to preserve the function; None if the checkpoint is not here."""
    outcome: Outcome
    highest: float | None
    """The highest loss from step 0 on, in nats per token, until the old one was reached again."""
    regained_after_tokens: int | None
    """Data tokens of the stage up to the first evaluation that had the old loss again, within 0.001 nats; 0 if none was
    above it, None if it was not reached so far."""
    regained_after_flops: float | None


def growths(run: RunReport) -> tuple[Growth, ...]:
    """The growths between the stages of a run, and from its start checkpoint, that have happened."""
    sizes = [*([run.base.num_parameters] if run.base else []), *(stage.num_parameters for stage in run.stages)]
    paths = {name: stage.initial for _, name, stage in RunPaths(run.directory).stages_found()}
    happened = []
    for stage, (before, after) in zip(run.stages if run.base else run.stages[1:], pairwise(sizes), strict=True):
        if before == after or (stage.loss_after_growth is None and not stage.train_tokens):
            continue
        details = _details(paths.get(stage.name, Path()))
        highest, step = _recovery(stage, [point for point in run.points if point.stage == stage.name])
        happened.append(
            Growth(
                stage=stage.name,
                num_parameters_before=before,
                new_layers=details.get("new_layers"),
                policy=details.get("policy") or {key: details[key] for key in ("operator",) if key in details},
                preserves=details.get("preserves"),
                outcome=_outcome(stage.jump, details.get("preserves")),
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
    if jump is None:
        return "unknown"
    if abs(jump) <= EXACT_GROWTH:
        return "preserved"
    return "moved" if preserves is None else "broke its promise" if preserves else "moved as declared"


def _details(initial: Path) -> dict[str, Any]:
    try:
        return read_manifest(initial).lineage.details
    except (UserError, OSError):
        return {}


_GROWTH_COLUMNS = (
    Column("growth to", is_number=False),
    Column("parameters", drop=2),
    Column("policy", is_number=False, drop=1),
    *(Column(name) for name in ("loss before", "loss after", "jump", "highest", "tokens to regain", "FLOPs to regain")),
    Column("verdict", is_number=False),
)
_ABOUT = (
    "Losses are validation losses in nats per token: before the growth, right after it, and the highest until the old "
    "loss is reached again. Tokens and FLOPs to regain: what the new stage trained up to the first evaluation that is "
    "as low again, within 0.001 nats. Evaluations are some steps apart, so that it may have been earlier."
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


def _growth_row(growth: Growth, stage: StageReport) -> tuple[Cell, ...]:
    keys = ("init", "tau", "operator", *(("depth",) if growth.new_layers else ()))
    policy = ", ".join(str(growth.policy[key]) for key in keys if key in growth.policy)
    sizes = f"{short_count(growth.num_parameters_before)} to {short_count(stage.num_parameters)}"
    sizes += f", {counted(growth.new_layers, 'new layer')}" if growth.new_layers else ""
    tokens, flops = growth.regained_after_tokens, growth.regained_after_flops
    never = "" if growth.highest is None else "not yet"
    return (
        Cell(growth.stage),
        Cell(sizes, stage.num_parameters),
        Cell(policy or "-", why="" if policy else "Its checkpoint is not here."),
        figure(stage.loss_before_growth, "{:.6f}"),
        figure(stage.loss_after_growth, "{:.6f}"),
        figure(stage.jump, jump_text),
        figure(growth.highest),
        *(
            Cell(never or "-") if value is None else Cell("at once" if not value else shown(value), value)
            for value, shown in ((tokens, short_count), (flops, scientific))
        ),
        Cell(growth.outcome, why=_WHY.get(growth.outcome, "")),
    )


_DROPPED = {"ZeRO stage": 5, "growctl": 4, "torch": 3, "DeepSpeed": 2, "Python": 1}
"""The columns that a narrow terminal leaves out, the one with 1 first."""
_NOT_RECORDED = "The run did not record it when it started."
_SOFTWARE = {"growctl": "growctl", "python": "Python", "torch": "torch", "deepspeed": "DeepSpeed"}


@dataclass(frozen=True)
class Environment:
    """What a run, or a part of it, was trained on."""

    device: str
    num_devices: int
    """One rank trains on each."""
    precision: str
    """`bf16` or `fp32`."""
    zero_stages: tuple[int, ...]
    """DeepSpeed's ZeRO stages; empty if they are not known."""
    software: tuple[tuple[str, tuple[str, ...]], ...]
    """The versions of each package, or of Python, with which the ladder was started; empty if they are not known."""


def environments(run: RunReport) -> tuple[Environment, ...]:
    """What a run was trained on, in the order of the work, reused work included; empty before any."""
    ladder = RunPaths(run.directory.with_name(run.control_of) if run.control_of else run.directory)
    versions: dict[str, dict[str, None]] = {}
    for start in read_starts(ladder):
        for name, version in start.software.items():
            versions.setdefault(name, {})[version] = None
    software = tuple((name, tuple(versions[name])) for name in _SOFTWARE if name in versions)
    zero: dict[tuple[str, int, str], set[int]] = {}
    for _, _, stage in RunPaths(run.directory).stages_found():
        for record in (*read_events(stage.metrics, "start"), *read_events(stage.release.metrics, "start")):
            machine = (record["device"], record["num_devices"], record["precision"])
            zero.setdefault(machine, set()).add(record["zero_stage"])
    return tuple(Environment(*machine, tuple(sorted(zero.get(machine, ()))), software) for machine in run.machines)


def environment_section(runs: Sequence[RunReport]) -> Section | None:
    """A row for each environment, with its runs; None if nothing was trained."""
    names = ("runs", "device", "devices", "precision", "ZeRO stage", *_SOFTWARE.values())
    columns = [Column(name, name in ("devices", "ZeRO stage"), _DROPPED.get(name, 0)) for name in names]
    trained_in: dict[Environment, list[str]] = {}
    for run in runs:
        for environment in environments(run):
            trained_in.setdefault(environment, []).append(run.name)
    rows = []
    for each, members in trained_in.items():
        software = {name: " and ".join(versions) for name, versions in each.software}
        who = f"all {len(members)} runs" if len(members) == len(runs) > 1 else ", ".join(members)
        zero = " and ".join(map(str, each.zero_stages))
        rows.append([
            *(Cell(who), Cell(each.device), Cell(str(each.num_devices), each.num_devices), Cell(each.precision)),
            Cell(zero or "-", why="" if zero else "Only the ledger is here, which does not record it."),
            *(Cell(software.get(name, "-"), why="" if name in software else _NOT_RECORDED) for name in _SOFTWARE),
        ])  # fmt: skip
    table = Table.of("environment", columns, rows)
    return Section("environment", "Environment", (table,), in_terminal=False, is_detail=True) if rows else None


_HIDDEN = f"What looks like a secret, such as a variable in launch.environment, is replaced by {REMOVED}."


def _redaction() -> Redaction:
    """Leaves names: runs may be called like their user."""
    return replace(Redaction.of(os.environ), users=())


def command_section(runs: Sequence[RunReport], report: Sequence[str] = ()) -> Section | None:
    """The commands of each ladder, each once, and the command `report`; None if none is known."""
    redact = _redaction()

    def shown(command: Sequence[str]) -> str:  # the report shows prompts elsewhere anyway
        return shlex.join([word if word.startswith("samples.prompts") else redact(word) for word in command])

    parts: list[Listing | Paragraph] = []
    for ladder in (run for run in runs if run.control is None):
        dates: dict[str, list[str]] = {}
        for start in read_starts(RunPaths(ladder.directory)):
            dates.setdefault(shown(start.command), []).append(start.at)
        for command, at in dates.items():
            again = f", and {len(at) - 1} more times until {at[-1]}" if len(at) > 1 else ""
            parts.append(Listing(f"{ladder.name}, started {at[0]}{again}", command, is_command=True))
        if not dates:
            parts.append(Paragraph(f"No start was recorded of {ladder.name}.", "note"))
    parts += [Listing("this report", shown(report), is_command=True)] if report else []
    parts += [Paragraph(_HIDDEN, "note")] if any(REMOVED in part.text for part in parts) else []
    return Section("commands", "Commands", tuple(parts), in_terminal=False) if parts else None


def schedule_section(runs: Sequence[RunReport]) -> Section | None:
    """The schedules of the ladders; None if none is here. `growctl compare` shows in what two of them differ."""
    ladders = [run for run in runs if run.control is None]
    texts = {run.name: text for run in ladders if (text := _schedule(run.directory))}
    parts: list[Part] = [Listing(f"schedule of {name}", text) for name, text in texts.items()]
    if any(REMOVED in text for text in texts.values()):
        parts.append(Paragraph(_HIDDEN, "note"))
    return Section("schedule", "Schedule", tuple(parts), in_terminal=False, is_detail=True) if parts else None


def _schedule(run: Path) -> str | None:
    path = RunPaths(run).schedule
    try:
        text, data = path.read_text(encoding="utf-8"), read_yaml(path)
    except (OSError, UserError):
        return None
    clean = _redaction().of_data(data)
    return text if clean == data else str(yaml.safe_dump(clean, sort_keys=False))
