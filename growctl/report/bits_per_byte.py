"""Losses in bits per byte: what compares runs of different tokenizers on the same validation text."""

from collections.abc import Iterator, Sequence

from growctl.analysis.data_groups import DataGroup, comparable_groups
from growctl.analysis.runs import EvaluationPoint, RunReport, StageReport
from growctl.report.chart import Axis, Chart, Mark, Role, Series
from growctl.text.formatting import exact, four_digits, scientific, short_count
from growctl.text.section import Cell, Column, Paragraph, Part, Rows, Section, Table
from stages.counted import counted

KEY = "bits-per-byte"

_FLOPS = Axis("flops", "cumulative training compute (FLOPs)", is_log=True)
_BITS_PER_BYTE = Axis("bits_per_byte", "validation bits per byte")
_HEADROOM = 1.5
"""The top of the chart, relative to the worst final value. It cuts off the start of training."""

_COLUMNS = (
    Column("stage", is_number=False),
    Column("parameters", drop=1),
    Column("FLOPs so far"),
    Column("perplexity", drop=2),
    Column("bits per byte"),
)
_EXPLAINED = (
    "Bits per byte is the loss per byte of text instead of per token, so it does not depend on how a tokenizer cuts "
    "the text. These datasets hold the same validation text. Their training texts may still differ."
)


def section(runs: Sequence[RunReport]) -> Section | None:
    """A table and a chart for each validation text that several datasets share; None if no two datasets share one."""
    together = [groups for groups in comparable_groups(runs) if len(groups) > 1]
    parts: list[Part] = [Paragraph(_EXPLAINED)] if together else []
    for number, groups in enumerate(together, 1):
        key = KEY if len(together) == 1 else f"{KEY}-{number}"
        parts += [Paragraph(" and ".join(group.name for group in groups), "heading"), _table(key, groups)]
        if chart := curves([run for group in groups for run in group.runs], key):
            parts.append(chart)
    return Section(KEY, "Bits per byte", tuple(parts)) if parts else None


def curves(runs: Sequence[RunReport], key: str) -> Chart | None:
    """The bits per byte of every evaluation against the FLOPs up to it; None if none is recorded."""
    series = tuple(line for run in runs for line in _lines(run))
    if not series:
        return None
    ends = [mark.y for line in series for mark in line.marks if mark.is_end]
    measured = counted(sum(len(line.marks) for line in series), "measurement")
    return Chart(
        key=f"{key}-against-compute",
        title="Compute against bits per byte",
        summary=f"Validation bits per byte against cumulative FLOPs, for {counted(len(runs), 'run')}: {measured}.",
        x_axes=(_FLOPS,),
        y_axis=_BITS_PER_BYTE,
        series=series,
        y_limit=_HEADROOM * max(ends) if ends else None,
    )


def _table(key: str, groups: Sequence[DataGroup]) -> Table:
    rows = [
        Rows(tuple(_cells(part) for part in run.parts if part.finished), run.name, group.name)
        for group in groups
        for run in group.runs
    ]
    return Table(key, _COLUMNS, tuple(rows))


def _cells(stage: StageReport) -> tuple[Cell, ...]:
    perplexity, bits = stage.perplexity, stage.bits_per_byte
    return (
        Cell(stage.name),
        Cell(short_count(stage.num_parameters), stage.num_parameters),
        Cell(scientific(stage.cumulative_flops), stage.cumulative_flops),
        Cell("-" if perplexity is None else four_digits(perplexity), perplexity),
        Cell("-" if bits is None else f"{bits:.4f}", bits),
    )


def _lines(run: RunReport) -> Iterator[Series]:
    """The line of a run's evaluations, and marks of its releases; without what has no bits per byte."""
    role: Role = "ladder" if run.control is None else "control"
    if marks := tuple(mark for point in run.points for mark in _marks(run, point)):
        yield Series(run.name, marks, role, group=run.name)
    for release in run.releases:
        if release.validation_loss is not None and release.perplexity is not None:
            loss, perplexity, bits = release.validation_loss, release.perplexity, release.bits_per_byte
            end = EvaluationPoint(release.name, "final", release.cumulative_flops, loss, perplexity, bits)
            if marks := tuple(_marks(run, end)):
                yield Series(f"{release.name} of {run.name}", marks, "release", group=run.name)


def _marks(run: RunReport, point: EvaluationPoint) -> Iterator[Mark]:
    if point.bits_per_byte is not None and point.cumulative_flops > 0:
        facts = (
            ("run", run.name),
            ("stage", point.stage),
            ("FLOPs", exact(point.cumulative_flops)),
            ("loss", f"{point.loss:.4f} nats per token"),
            ("bits per byte", f"{point.bits_per_byte:.4f}"),
        )
        yield Mark({_FLOPS.key: point.cumulative_flops}, point.bits_per_byte, facts, is_end=point.point == "final")
