"""The table of stages: what each stage of each run cost, and how good its model is."""

from collections.abc import Callable, Collection, Sequence

from growctl.analysis.data_groups import data_groups
from growctl.analysis.runs import RunReport, StageReport
from growctl.report.brief import brief_runs
from growctl.runs_dir import CONTROL_INFIX
from growctl.text.formatting import duration, four_digits, scientific, short_count
from growctl.text.section import Cell, Column, Paragraph, Part, Rows, Section, Table

COLUMNS = (
    Column("stage", is_number=False),
    Column("layers", drop=6),
    Column("batch", drop=5),
    Column("context", drop=4),
    Column("parameters", drop=3),
    Column("tokens"),
    Column("FLOPs", drop=1),
    Column("FLOPs so far"),
    Column("device time", drop=2),
    Column("perplexity"),
    Column("jump"),
)
"""The columns that `stage_cells` fills. The batch is in sequences, the context in data tokens, the jump in nats per
token; the other cells carry their units."""

_SHAPES: dict[str, Callable[[StageReport], int | None]] = {
    "layers": lambda stage: stage.num_layers,
    "batch": lambda stage: stage.batch_size,
    "context": lambda stage: stage.sequence_length,
}
"""Columns that a table has only if they change within a run: most ladders grow in tokens alone."""


def section(runs: Sequence[RunReport]) -> Section:
    """The stages of every run, with notes below them. Each dataset has a table of its own."""
    groups, brief = data_groups(runs), brief_runs(runs)
    if len(groups) < 2:
        return Section("stages", "Stages", (_table("stages", runs, brief),))
    parts: list[Part] = []
    for number, group in enumerate(groups, 1):
        parts += [Paragraph(f"Dataset {group.name}", "heading"), _table(f"stages-{number}", group.runs, brief)]
    return Section("stages", "Stages", tuple(parts))


def _table(key: str, runs: Sequence[RunReport], brief: Collection[str]) -> Table:
    same = {name for name, of in _SHAPES.items() if all(len({of(part) for part in run.parts}) < 2 for run in runs)}
    shown = [number for number, column in enumerate(COLUMNS) if column.heading not in same]
    groups = []
    for run in runs:
        rows = tuple(tuple(stage_cells(part)[number] for number in shown) for part in run.parts)
        remark = "control" if run.name.startswith(f"{run.control_of}{CONTROL_INFIX}") else run.description
        groups.append(Rows(rows, run.name, remark, tuple(remarks(run)), is_detail=run.name not in brief))
    return Table(key, tuple(COLUMNS[number] for number in shown), tuple(groups))


def stage_cells(stage: StageReport) -> tuple[Cell, ...]:
    """The cells of a stage, one for each of COLUMNS."""
    jump = "-" if stage.jump is None else f"{stage.jump:+.1e}" if stage.jump else "0"
    perplexity = "-" if stage.perplexity is None else four_digits(stage.perplexity)
    if not stage.finished and stage.train_tokens:
        perplexity = "unfinished"
    return (
        Cell(stage.name),
        *(Cell("-" if (value := of(stage)) is None else f"{value:,}", value) for of in _SHAPES.values()),
        Cell(short_count(stage.num_parameters), stage.num_parameters),
        Cell(short_count(stage.train_tokens), stage.train_tokens),
        Cell(scientific(stage.flops), stage.flops),
        Cell(scientific(stage.cumulative_flops), stage.cumulative_flops),
        Cell(duration(stage.device_seconds), stage.device_seconds),
        Cell(perplexity, stage.perplexity),
        Cell(jump, stage.jump),
    )


def replayed_work(run: RunReport) -> str | None:
    """The cost of replayed work, in one sentence; None if there is none."""
    flops = sum(part.replayed_flops for part in run.parts)
    seconds = round(sum(part.replayed_device_seconds for part in run.parts))
    share = f" (+{flops / run.total_flops:.1%})" if run.total_flops else ""
    parts = [f"{scientific(flops)} FLOPs{share}, not counted above"] if flops else []
    parts += [f"{duration(seconds)} of device time, counted above"] if seconds else []
    return f"Replayed after interruptions: {', and '.join(parts)}." if parts else None


def recomputed_work(run: RunReport) -> str | None:
    """What activation checkpointing added, in one sentence; None if nothing was recomputed."""
    flops, model = run.recomputed_flops, sum(part.flops - part.reused_flops + part.replayed_flops for part in run.parts)
    if not flops:
        return None
    return (
        f"Activation checkpointing recomputed {scientific(flops)} FLOPs (+{flops / model:.0%}) to save memory, not "
        "counted above; their device time is."
    )


def reused_work(run: RunReport) -> str | None:
    """The work taken over from other runs, in one sentence; None if there is none."""
    if not run.reused_from:
        return None
    flops, whole = run.reused_flops, run.total_flops
    names = " and ".join(name.removeprefix(f"{run.control_of}{CONTROL_INFIX}") for name in run.reused_from)
    return (
        f"{scientific(flops)} of these FLOPs ({flops / whole:.1%}) are reused from {names}; their device time is not "
        "counted here."
    )


def base_cost(run: RunReport) -> str | None:
    """The checkpoint that a run started from and its cost, in one sentence; None for a new model."""
    if run.base is None:
        return None
    whose = f"trained in run {run.base.run}" if run.base.run else run.base.path
    size = f"{short_count(run.base.num_parameters)} parameters, {whose}"
    if run.base.flops is None:
        return f"Start checkpoint: {size}. Its cost is not known and not counted; start.flops can give it."
    return f"Start checkpoint: {scientific(run.base.flops)} FLOPs, counted in FLOPs so far ({size})."


def remarks(run: RunReport) -> list[str]:
    """The notes below a run's stages: its start checkpoint, its contexts, reused, replayed and recomputed work, and
    more."""
    notes = (base_cost(run), _contexts(run), reused_work(run), replayed_work(run), recomputed_work(run), _releases(run))
    return [*filter(None, notes), *run.notes]


def _contexts(run: RunReport) -> str | None:
    """At which context losses are measured, and what they are at a stage's own; None if all stages have one."""
    own = [
        f"{stage.own_context_loss:.4f} for {stage.name} at {stage.sequence_length:,}"
        for stage in run.parts
        if stage.own_context_loss is not None and stage.sequence_length
    ]
    last = run.stages[-1].sequence_length if run.stages else None
    if not own or not last:
        return None
    return (
        f"Losses are measured at the last stage's context, {last:,} tokens. At a stage's own context: {', '.join(own)} "
        "(nats per token)."
    )


def _releases(run: RunReport) -> str | None:
    """How releases count, in one sentence; None if there are none."""
    if not run.releases:
        return None
    flops = scientific(run.total_flops - run.cumulative_flops)
    return f"Releases are branches of {flops} FLOPs in all; the stages after them do not count these."
