"""Whether each growth did what its policy says: the loss before and after it, and the checkpoints to check it with."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from growctl.analysis.runs import RunReport
from growctl.runs_dir import RunPaths
from growctl.text.formatting import short_count
from growctl.text.section import Cell, Column, Listing, Paragraph, Rows, Section, Table
from model.errors import UserError
from model.policy import EXACT_GROWTH
from stages.checkpoint.manifest import read_manifest
from stages.counted import counted
from stages.stage_dir import MANIFEST_NAME

Outcome = Literal["preserved", "moved as declared", "moved", "broke its promise", "unknown"]

_COLUMNS = (
    Column("growth", is_number=False),
    Column("parameters", drop=2),
    Column("policy", is_number=False, drop=1),
    Column("loss before"),
    Column("loss after"),
    Column("jump"),
    Column("verdict", is_number=False),
)
_WHY: dict[Outcome, str] = {
    "broke its promise": f"Its policy preserves the function: the loss should move by at most {EXACT_GROWTH:g} nats.",
    "moved as declared": "Its policy does not promise to preserve the function.",
    "moved": "Its checkpoint is not here, so what its policy promises is not known.",
    "unknown": "The loss before or right after the growth was not measured.",
}
_ABOUT = (
    "Each growth is judged by the validation loss right before and right after it, in nats per token. To compare the "
    "two models themselves, output by output:"
)


@dataclass(frozen=True)
class Growth:
    """One growth, and what it did to the validation loss."""

    stage: str
    """The stage that trains the grown model."""
    num_parameters_before: int
    num_parameters: int
    new_layers: int | None
    """Layers that a tokenformer gained; None if the checkpoint is not here."""
    policy: dict[str, Any]
    """As the manifest of the grown checkpoint has it; empty if that is not here."""
    preserves: bool | None
    """Whether the policy promises to preserve the function; None if the checkpoint is not here."""
    loss_before: float | None
    """Nats per token."""
    loss_after: float | None
    jump: float | None
    outcome: Outcome


def growths(run: RunReport) -> tuple[Growth, ...]:
    """The growths between the stages of a run, and from its start checkpoint, that have happened."""
    sizes = [*([run.base.num_parameters] if run.base else []), *(stage.num_parameters for stage in run.stages)]
    grown = run.stages if run.base else run.stages[1:]
    paths = {name: stage.initial for _, name, stage in RunPaths(run.directory).stages_found()}
    found = []
    for stage, (before, after) in zip(grown, pairwise(sizes), strict=True):
        if before == after or (stage.loss_after_growth is None and not stage.train_tokens):
            continue
        details = _details(paths.get(stage.name, Path()))
        preserves = details.get("preserves")
        policy = details.get("policy") or {name: details[name] for name in ("operator",) if name in details}
        losses = (stage.loss_before_growth, stage.loss_after_growth, stage.jump)
        sizes_and_policy = (before, after, details.get("new_layers"), policy, preserves)
        found.append(Growth(stage.name, *sizes_and_policy, *losses, _outcome(stage.jump, preserves)))
    return tuple(found)


def section(runs: Sequence[RunReport]) -> Section | None:
    """The growths of all runs, and the commands that check them further; None without a growth."""
    groups = [
        Rows(tuple(_row(run, growth) for growth in found), run.name) for run in runs if (found := growths(run))
    ]  # fmt: skip
    if not groups:
        return None
    parts: list[Paragraph | Table | Listing] = [Table("growths", _COLUMNS, tuple(groups))]
    if commands := "\n".join(command for run in runs for command in _commands(run)):
        parts += [Paragraph(_ABOUT), Listing("checks of the checkpoints", commands, is_command=True)]
    return Section("growths", "Growth verification", tuple(parts), in_terminal=False)


def _outcome(jump: float | None, preserves: bool | None) -> Outcome:
    if jump is None:
        return "unknown"
    if abs(jump) <= EXACT_GROWTH:
        return "preserved"
    if preserves is None:
        return "moved"
    return "broke its promise" if preserves else "moved as declared"


def _row(run: RunReport, growth: Growth) -> tuple[Cell, ...]:
    names = [stage.name for stage in run.stages]
    before = names[names.index(growth.stage) - 1] if growth.stage != names[0] else "start checkpoint"
    keys = ("init", "tau", "operator", *(("depth",) if growth.new_layers else ()))
    policy = ", ".join(str(growth.policy[key]) for key in keys if key in growth.policy)
    sizes = f"{short_count(growth.num_parameters_before)} to {short_count(growth.num_parameters)}"
    if growth.new_layers:
        sizes += f", {counted(growth.new_layers, 'new layer')}"
    return (
        Cell(f"{before} to {growth.stage}"),
        Cell(sizes, growth.num_parameters),
        Cell(policy or "-", why="" if policy else "Its checkpoint is not here."),
        _loss(growth.loss_before),
        _loss(growth.loss_after),
        Cell("-") if growth.jump is None else Cell(f"{growth.jump:+.1e}" if growth.jump else "0", growth.jump),
        Cell(growth.outcome, why=_WHY.get(growth.outcome, "")),
    )


def _loss(loss: float | None) -> Cell:
    return Cell("-") if loss is None else Cell(f"{loss:.6f}", loss)


def _details(initial: Path) -> dict[str, Any]:
    """What the manifest of a grown checkpoint says of the growth; empty if it is missing or damaged."""
    try:
        return read_manifest(initial).lineage.details
    except (UserError, OSError):
        return {}


def _commands(run: RunReport) -> Iterator[str]:
    """The commands that compare the models before and after each growth, where both checkpoints are here."""
    grown = {growth.stage for growth in growths(run)}
    for (_, _, before), (_, name, after) in pairwise(RunPaths(run.directory).stages_found()):
        both = (before.final, after.initial)
        if name in grown and all((checkpoint / MANIFEST_NAME).is_file() for checkpoint in both):
            yield shlex.join(["growctl", "verify", str(before.final), str(after.initial)])
