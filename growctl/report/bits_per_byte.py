"""Losses in bits per byte: what compares runs of different tokenizers on the same validation text."""

from collections.abc import Sequence
from dataclasses import dataclass

from growctl.content.chart import Axis, Chart
from growctl.content.section import Column, Paragraph, Section, Table
from growctl.report.data_groups import comparable_groups
from growctl.report.read import RunReport
from stages.counted import counted

FLOPS = Axis("flops", "training FLOPs, cumulative", is_log=True)
BITS_PER_BYTE = Axis("bits_per_byte", "validation bits per byte")

_COLUMNS = (
    Column("stage", is_number=False),
    Column("parameters", drop=1),
    Column("FLOPs so far"),
    Column("perplexity", drop=2),
    Column("bits per byte"),
)
_EXPLAINED = (
    "Bits per byte is the loss per byte of text, not per token, so it does not depend on how a tokenizer cuts the text. "
    "It still depends on the text, and the training texts may differ."
)


@dataclass(frozen=True)
class Comparable:
    """Datasets with one validation text."""

    datasets: tuple[str, ...]
    runs: tuple[RunReport, ...]


def section(runs: Sequence[RunReport]) -> Section | None:
    """A table and a chart for each validation text that several datasets share; None if no two datasets share one."""
    parts: list[Paragraph | Table | Chart] = []
    for number, groups in enumerate(some for some in comparable_groups(runs) if len(some) > 1):
        names = " and ".join(group.name for group in groups)
        parts.append(Paragraph(f"{names} validate on the same text.", "heading"))
        parts.append(_table(groups, number))
        if chart := curves([run for group in groups for run in group.runs], f"bits-per-byte-{number + 1}"):
            parts.append(chart)
    if not parts:
        return None
    return Section("bits-per-byte", "Bits per byte", (Paragraph(_EXPLAINED), *parts))


def curves(runs: Sequence[RunReport], key: str) -> Chart | None:
    """The bits per byte of every evaluation against the FLOPs so far; None if none is recorded."""
    series = tuple(line for run in runs for line in _lines(run))
    if not series:
        return None
    marks = sum(len(line.marks) for line in series)
    summary = f"Bits per byte of {counted(len(runs), 'run')} against FLOPs, {counted(marks, 'measurement')}."
    return Chart(key, "Bits per byte against FLOPs", summary, (FLOPS,), BITS_PER_BYTE, series)
