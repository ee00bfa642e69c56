"""All that a report says, topic by topic, in the order in which a reader wants it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from growctl.analysis.data_groups import data_document, data_groups
from growctl.analysis.groups import groups
from growctl.analysis.results import results as judge
from growctl.ladder.datasets import few_images, small_validation
from growctl.law.formula import Law
from growctl.report import compute, results, scores, setup, training
from growctl.report.law import section as law_section
from growctl.report.legend import Legend
from growctl.runs.runs import RunReport, StageReport
from growctl.runs_dir import CONTROL_INFIX, RunPaths
from growctl.text.formatting import duration, four_digits, jump_text, scientific, short_count
from growctl.text.section import Cell, Column, Listing, Paragraph, Part, Rows, Section, Table, figure, rows_of

MOST_RUNS = 6
"""Of three or four lines each, they fit one screen."""
SHOWN_ANOMALIES = 10


def report_sections(
    runs: Sequence[RunReport], keys: Sequence[str] = (), command: Sequence[str] = (), law: Law | None = None
) -> list[Section]:
    """The sections of the report on `runs` that `command` makes, the most important first.

    `keys` keep runs apart (`--group-by`). `law` says what it predicts.
    """
    legend = Legend.of(runs, keys)
    judged = judge(runs, keys)
    topics = (
        *(results.headline(judged), _warnings(runs), compute.section(runs, legend)),
        law_section(runs, law) if law else None,
        *results.sections(judged),
        *(stage_section(runs), _sources(runs), results.cost_by_stage(runs)),
        *training.sections(runs, legend),
        *(_anomalies(runs), setup.growth_section(runs), scores.section(runs)),
        *(_samples(runs), setup.environment_section(runs), setup.schedule_section(runs)),
        *(setup.command_section(runs, command), _method()),
    )
    return [section for section in topics if section]


def newest_sections(runs: Sequence[RunReport]) -> list[Section]:
    """The sections on the ladder or sweep among `runs` that was recorded last, and a line for each other one."""
    subjects = {run.name: run.control_of or run.name for run in runs}
    for group in groups(runs):
        own = {run.name for run in runs if subjects[run.name] in group.names}
        subjects |= dict.fromkeys(own, (group.first.swept and group.first.group) or group.name)
    newest = subjects[max(runs, key=lambda run: RunPaths(run.directory).ledger.stat().st_mtime).name]
    others = [run for run in runs if subjects[run.name] != newest]
    first, *more = report_sections([run for run in runs if run not in others])
    if not others:
        return [first, *more]
    return [replace(first, heading=f"Newest result: {newest}"), results.overview(judge(others)), *more]


def brief_runs(runs: Sequence[RunReport]) -> frozenset[str]:
    """The runs whose rows a terminal shows without `--details`: all of a few, else the ladders, else none."""
    for some in (runs, [run for run in runs if run.control is None]):
        if len(some) <= MOST_RUNS:
            return frozenset(run.name for run in some)
    return frozenset()


def _perplexity(stage: StageReport) -> Cell:
    is_unfinished = stage.train_tokens and not stage.finished
    return Cell("unfinished") if is_unfinished else figure(stage.perplexity, four_digits)


_SHAPE_COLUMNS = (
    Column("layers", drop=4, cell=lambda stage: figure(stage.num_layers, "{:,}")),
    Column("batch", drop=4, cell=lambda stage: figure(stage.batch_size, "{:,}")),
    Column("context", drop=4, cell=lambda stage: figure(stage.sequence_length, "{:,}")),
)
"""Columns that the table of stages has only if they change within a run: most ladders grow in tokens alone."""
_MFU = Column("MFU", drop=1, cell=lambda stage: figure(stage.mfu, "{:.1%}"))
_BITS = Column("bits per byte", cell=lambda stage: figure(stage.bits_per_byte))
_ACCURACIES = (
    Column("top-1", cell=lambda stage: figure(stage.top1, "{:.2%}")),
    Column("top-5", drop=2, cell=lambda stage: figure(stage.top5, "{:.2%}")),
)
_PARAMETERS = Column("parameters", drop=3, cell=lambda stage: figure(stage.num_parameters, short_count))
_READ = Column("read", drop=4, cell=lambda stage: figure(stage.num_read_parameters, short_count))
_STAGE_COLUMNS = (
    Column("tokens", cell=lambda stage: figure(stage.train_tokens, short_count)),
    Column("FLOPs", drop=1, cell=lambda stage: figure(stage.flops, scientific)),
    Column("FLOPs so far", cell=lambda stage: figure(stage.cumulative_flops, scientific)),
    Column("device time", drop=2, cell=lambda stage: figure(stage.spent.device_seconds, duration)),
    Column("perplexity", cell=_perplexity),
    Column("jump", cell=lambda stage: figure(stage.jump, jump_text)),
)


def stage_section(runs: Sequence[RunReport]) -> Section:
    """What each stage of each run cost and how good its model is, with notes below; a table for each dataset."""
    parts: list[Part] = []
    groups, brief = data_groups(runs), brief_runs(runs)
    for number, (dataset, members) in enumerate(groups.items(), 1):
        shapes = [each for each in _SHAPE_COLUMNS if any(len(set(map(each.cell, run.parts))) > 1 for run in members)]
        more = [_MFU] if any(part.mfu for run in members for part in run.parts) else []
        more += [_BITS] if len(groups) > 1 else []
        more += _ACCURACIES if any(part.top1 is not None for run in members for part in run.parts) else ()
        shapes += [_PARAMETERS] + [_READ] * any(part.num_read_parameters for run in members for part in run.parts)
        columns = (Column("stage", False, cell=lambda stage: Cell(stage.name)), *shapes, *_STAGE_COLUMNS, *more)
        rows = []
        for run in members:
            remark = "control" if run.name.startswith(f"{run.control_of}{CONTROL_INFIX}") else run.description
            cells, is_detail = rows_of(columns, run.parts), run.name not in brief
            rows.append(Rows(cells, run.name, remark, tuple(remarks(run)), is_detail=is_detail))
        parts += [Paragraph(f"Dataset {dataset.name}", "heading")] if len(groups) > 1 else []
        parts.append(Table(f"stages-{number}" if len(groups) > 1 else "stages", columns, tuple(rows)))
    return Section("stages", "Stages", tuple(parts))


def remarks(run: RunReport) -> Iterator[str]:
    """The notes below a run's stages: its start checkpoint, contexts, and reused, replayed and recomputed work."""
    if run.base:
        whose = f"trained in run {run.base.run}" if run.base.run else run.base.path
        size = f"{short_count(run.base.num_parameters)} parameters, {whose}"
        cost = "cost is not known" if run.base.flops is None else f"{scientific(run.base.flops)} FLOPs are paid for"
        yield f"Start checkpoint: {size}. FLOPs count from it on: its {cost}."
    own = [
        f"{stage.own_context_loss:.4f} for {stage.name} at {stage.sequence_length:,}"
        for stage in run.parts
        if stage.own_context_loss is not None and stage.sequence_length
    ]
    if own and (last := run.stages[-1].sequence_length):
        yield (
            f"Losses are measured at the last stage's context, {last:,} tokens. At a stage's own context: "
            f"{', '.join(own)} (nats per token)."
        )
    whole = run.cumulative_flops + sum(release.flops for release in run.releases)
    reused, payers = sum(part.reused_flops for part in run.parts), [part.reused_from for part in run.parts]
    if any(payers):
        payer_names = dict.fromkeys(name for names in payers for name in names)
        names = " and ".join(name.removeprefix(f"{run.control_of}{CONTROL_INFIX}") for name in payer_names)
        yield (
            f"{scientific(reused)} of these FLOPs ({reused / whole:.1%}) are reused from {names}; "
            "their device time is not counted here."
        )
    if whole and (flops := sum(part.replayed_flops for part in run.parts)):
        yield f"Replayed after interruptions: {scientific(flops)} FLOPs (+{flops / whole:.1%}), not counted above."
    if recomputed := sum(part.spent.recomputed_flops for part in run.parts):
        model = sum(part.flops - part.reused_flops + part.replayed_flops for part in run.parts)
        yield (
            f"Activation checkpointing recomputed {scientific(recomputed)} FLOPs "
            f"(+{recomputed / model:.0%}) to save memory, not counted above; their device time is."
        )
    yield from run.notes


def validation_warning(run: RunReport) -> str | None:
    """The warning for the validation set of one run; None if it is large enough, or its size is not recorded."""
    if run.validation_documents is None or run.validation_tokens is None:
        return None
    most = run.conditions.get("evaluation.max_sequences")
    if any(part.top1 is not None for part in run.parts):
        return few_images(run.validation_documents, most)
    return small_validation(
        run.validation_documents,
        run.validation_tokens,
        max_sequences=most,
        sequence_length=(run.stages[-1].sequence_length if run.stages else None) or 1,
    )


def _warnings(runs: Sequence[RunReport]) -> Section | None:
    """What may make the comparisons worthless, each warning once, with the runs if it does not hold for all."""
    by_text: dict[str, list[str]] = {}
    for run in runs:
        if warning := validation_warning(run):
            by_text.setdefault(warning, []).append(run.name)
    texts = [data_document(runs).warning] + [
        warning if len(names) == len(runs) else f"{', '.join(names)}: {warning}" for warning, names in by_text.items()
    ]
    parts = tuple(Paragraph(text, "warning") for text in texts if text)
    return Section("warnings", "Warnings", parts) if parts else None


_SOURCE_COLUMNS = (
    Column("stage", False, cell=lambda row: Cell(row[0].name + ("" if row[0].finished else " (unfinished)"))),
    Column("source", False, cell=lambda row: Cell(row[1])),
    Column("tokens", cell=lambda row: figure(row[2]["trained_tokens"], short_count)),
    Column("epochs so far", cell=lambda row: figure(row[2]["epochs"], "{:.3g}")),
    Column("validation loss", cell=lambda row: figure(row[2]["loss"])),
    Column("bits per byte", drop=2, cell=lambda row: figure(row[2]["bits_per_byte"])),
)
_SOURCES = (
    "Tokens are those that the stage trained on, without data that a rollback skipped; epochs count from the ladder's "
    "first sample on. Losses are in nats, at the stage's end or at the last evaluation so far. The loss "
    "elsewhere is their mean, weighted by data.mixture at every stage and in every control."
)


def _sources(runs: Sequence[RunReport]) -> Section | None:
    """What each stage of a run on a mixture trained on, and its loss on each source; None without mixtures."""
    sources = {run.name: [(part, *item) for part in run.parts for item in part.by_source.items()] for run in runs}
    brief = brief_runs([run for run in runs if sources[run.name]])
    rows = tuple(
        Rows(rows_of(_SOURCE_COLUMNS, sources[run.name]), run.name, run.description, is_detail=run.name not in brief)
        for run in runs
        if sources[run.name]
    )
    table = Table("sources", _SOURCE_COLUMNS, rows, _SOURCES)
    return Section("sources", "Sources of the mixture", (table,)) if rows else None


_ANOMALY_COLUMNS = (
    Column("stage", False, cell=lambda row: Cell(row[0])),
    Column("attempt", drop=1, cell=lambda row: figure(row[1].attempt, "{}")),
    Column("step", cell=lambda row: figure(row[1].step, "{:,}")),
    Column("kind", False, cell=lambda row: Cell(row[1].kind.replace("_", "-"))),
    Column("value", cell=lambda row: figure(row[1].value, "{:.4g}")),
    Column("threshold", drop=2, cell=lambda row: figure(row[1].threshold, "{:.4g}")),
    Column("action", False, cell=lambda row: Cell(row[1].action)),
    Column("steps skipped", drop=3, cell=lambda row: figure(row[1].num_steps, "{:,}")),
)


def _anomalies(runs: Sequence[RunReport]) -> Section | None:
    """The rejected updates of training, the latest of each run."""
    groups = []
    for run in (run for run in runs if run.anomalies):
        earlier = len(run.anomalies) - SHOWN_ANOMALIES
        notes = (f"{earlier} earlier anomalies are in the JSON report.",) if earlier > 0 else ()
        groups.append(Rows(rows_of(_ANOMALY_COLUMNS, run.anomalies[-SHOWN_ANOMALIES:]), run.name, notes=notes))
    table = Table("anomalies", _ANOMALY_COLUMNS, tuple(groups))
    return Section("anomalies", "Training anomalies", (table,)) if groups else None


def _samples(runs: Sequence[RunReport]) -> Section | None:
    """The texts that the models wrote, by prompt, in the order of the schedules; None if there are none."""
    by_prompt: dict[str, list[Listing]] = {}
    for run in runs:
        for stage in run.parts:
            for sample in stage.samples:
                by_prompt.setdefault(sample.prompt, []).append(Listing(f"{run.name}/{stage.name}", sample.whole))
    parts: list[Part] = []
    for prompt, texts in by_prompt.items():
        parts += [Paragraph(f"Text after {prompt!r}" if prompt else "Text of a new document", "heading"), *texts]
    heading = "Text after each stage"
    return Section("samples", heading, tuple(parts), in_terminal=False, is_detail=True) if parts else None


_METHOD = (
    "FLOPs are the matrix products of training, from the model's structure: a multiply-add counts as 2, attention as "
    "the full T x T, and the backward pass as twice the forward pass.",
    "Device time is wall time times devices, with start-up, evaluations, replayed steps and failed attempts.",
    "The loss is measured at the end of a stage on the validation data, in fp32 from the master weights. The jump is "
    "the change in loss that the growth itself causes, in nats: 0 if it preserves the function.",
    "In the charts of compute, large marks are the ends of stages and runs, and diamonds those of releases. Small dots "
    "are evaluations before the learning rate has decayed: a full run with that budget would reach a lower loss.",
    "docs/judge.md says how models are compared, and how often a verdict is right.",
)


def _method() -> Section:
    parts = tuple(map(Paragraph, _METHOD))
    return Section("method", "How the figures are computed", parts, in_terminal=False, is_detail=True)
