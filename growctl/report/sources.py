"""The table of a mixture's sources: what each stage trained on, and its validation loss on each."""

from collections.abc import Sequence

from growctl.analysis.data_groups import data_groups, mixture_shares
from growctl.analysis.runs import RunReport, StageReport
from growctl.report.brief import brief_runs
from growctl.text.formatting import short_count
from growctl.text.section import Cell, Column, Paragraph, Part, Rows, Section, Table

KEY = "sources"

_COLUMNS = (
    Column("stage", is_number=False),
    Column("source", is_number=False),
    Column("tokens"),
    Column("share", drop=1),
    Column("epochs so far"),
    Column("validation loss"),
    Column("bits per byte", drop=2),
)
_READ = (
    "Tokens are those that the stage trained on; data that a rollback skipped does not count. Epochs count from the "
    "ladder's first sample on. The loss is in nats per token, at the stage's end or, while it is unfinished, at its "
    "last evaluation."
)


def section(runs: Sequence[RunReport]) -> Section | None:
    """The sources of every run that was trained on a mixture; None if none was."""
    mixed = [run for run in runs if any(part.by_source for part in run.parts)]
    if not mixed:
        return None
    groups, parts = data_groups(mixed), list[Part]()
    brief = brief_runs(mixed)
    for number, group in enumerate(groups, 1):
        if len(groups) > 1:
            parts.append(Paragraph(f"Dataset {group.name}", "heading"))
        if weighted := weighted_loss(group.runs[0]):
            parts.append(Paragraph(weighted))
        rows = tuple(
            Rows(_cells(run), run.name, run.description, is_detail=run.name not in brief)
            for run in group.runs
            if _cells(run)
        )
        parts.append(Table(KEY if len(groups) == 1 else f"{KEY}-{number}", _COLUMNS, rows))
    return Section(KEY, "Sources of the mixture", (*parts, Paragraph(_READ)))


def weighted_loss(run: RunReport) -> str | None:
    """What the validation loss of a run on a mixture is, in one sentence; None without a mixture."""
    shares = mixture_shares(run)
    return shares and (
        f"The validation loss is the mean over the sources, weighted by data.mixture ({shares}), at every stage and in "
        "every control, whatever weights they train with."
    )


def _cells(run: RunReport) -> tuple[tuple[Cell, ...], ...]:
    return tuple(row for part in run.parts for row in _stage_cells(part))


def _stage_cells(stage: StageReport) -> list[tuple[Cell, ...]]:
    """A row for each source."""
    total = sum(source.train_tokens for source in stage.by_source.values())
    name = stage.name if stage.finished else f"{stage.name} (unfinished)"
    return [
        (
            Cell(name),
            Cell(source),
            Cell(short_count(found.train_tokens), found.train_tokens),
            Cell(f"{found.train_tokens / total:.1%}", found.train_tokens / total) if total else Cell("-"),
            Cell(f"{found.epochs:.3g}", found.epochs),
            _number(found.loss),
            _number(found.bits_per_byte),
        )
        for source, found in stage.by_source.items()
    ]


def _number(value: float | None) -> Cell:
    return Cell("-" if value is None else f"{value:.4f}", value)
