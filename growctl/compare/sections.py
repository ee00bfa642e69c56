"""Words the comparison of two runs as sections, for the terminal and for a page."""

from collections.abc import Iterator, Sequence
from typing import Any

from growctl.analysis.data_groups import data_warning, what_compares
from growctl.analysis.runs import RunReport
from growctl.compare.better import outcome
from growctl.compare.figures import Figure, figures
from growctl.compare.schedules import differing_settings
from growctl.report.chart import Chart
from growctl.report.compute import bits_per_byte_chart, compute_chart
from growctl.seeds.grouping import shown
from growctl.text.section import Cell, Column, Paragraph, Part, Rows, Section, Table
from growctl.verdicts.fairness import GRADES, Difference, Grade, fairness

_MEANINGS: dict[Grade, str] = {
    "decides": "decides: with it, a lower loss shows nothing about the training",
    "matters": "matters: it may change the loss as much as growing does",
    "minor": "minor: it hardly changes the loss",
}


def compare_sections(a: RunReport, b: RunReport, runs: Sequence[RunReport]) -> list[Section]:
    """The comparison of `a` and `b`, first how fair it is; `runs`: those of their sets."""
    differences = fairness(a, b, runs)
    found = (_fairness(a, b, differences), _result(a, b, differences), _figures(a, b), _curves(a, b), _settings(a, b))
    return [section for section in found if section]


def _fairness(a: RunReport, b: RunReport, differences: Sequence[Difference]) -> Section:
    parts: list[Part] = [Paragraph(f"{word} is {run.name} ({run.description}).") for word, run in (("A", a), ("B", b))]
    if warning := data_warning([a, b]):
        parts.append(Paragraph(warning, "warning"))
    if not differences:
        parts.append(Paragraph("Nothing differs that matters for a comparison.", "strong"))
        return Section("fairness", "How fair the comparison is", tuple(parts))
    columns = (Column("what differs", is_number=False), Column("A", is_number=False), Column("B", is_number=False))
    parts.append(Table("fairness", columns, tuple(_graded(differences))))
    return Section("fairness", "How fair the comparison is", tuple(parts))


def _graded(differences: Sequence[Difference]) -> Iterator[Rows]:
    """The differences, one by one with its reason, below a heading for each grade."""
    for grade in GRADES:
        heading = _MEANINGS[grade]
        for found in differences:
            if found.grade == grade:
                yield Rows(((Cell(found.what), Cell(found.a), Cell(found.b)),), heading, notes=(found.why,))
                heading = ""


def _result(a: RunReport, b: RunReport, differences: Sequence[Difference]) -> Section:
    first, *rest = outcome(a, b).sentences
    parts = [Paragraph(first, "strong"), *map(Paragraph, rest)]
    if [found.what for found in differences] == ["seed"] and len(parts) > 1:
        parts.append(Paragraph("Nothing but the seed differs, so the difference of the losses is chance."))
    elif len(parts) > 1:
        parts.append(Paragraph("This is one run of each: seeds alone may change a loss by as much.", "note"))
    doubts = [found.what for found in differences if found.grade != "minor" and not found.by_design]
    if doubts and len(parts) > 1:
        parts.append(Paragraph(f"The difference may come from what else differs: {', '.join(doubts)}.", "warning"))
    return Section("result", "Which is better", tuple(parts))


def _figures(a: RunReport, b: RunReport) -> Section:
    columns = (Column("", is_number=False), Column("A"), Column("B"), Column("B against A"))
    rows = [(Cell(found.name), *_values(found), _against(found)) for found in figures(a, b)]
    caption = (
        "The loss is in nats per token. Costs are those of the final model: its start checkpoint and reused work "
        "count, replayed work does not."
    )
    return Section("figures", "Losses and costs", (Table.of("figures", columns, rows, caption),))


def _values(figure: Figure) -> Iterator[Cell]:
    for value in (figure.a, figure.b):
        yield Cell("-", why="Not known.") if value is None else Cell(figure.shown(value), value)


def _against(figure: Figure) -> Cell:
    """B's figure against A's: the difference of losses, the ratio of costs."""
    if figure.why_not or figure.a is None or figure.b is None:
        return Cell("-", why=figure.why_not or "Not known of both.")
    if not figure.is_cost:
        more = figure.b - figure.a
        return Cell(f"{'+' if more >= 0 else ''}{figure.shown(more)}", more)
    if not figure.a:
        return Cell("-", why="A's is 0.")
    return Cell(f"{figure.b / figure.a:.2f}x", figure.b / figure.a)


def _curves(a: RunReport, b: RunReport) -> Section | None:
    """Both runs on one chart: of perplexity, or of what compares them; None if nothing does."""
    compared = what_compares(a, b)
    chart: Chart | None = None
    if compared == "loss":
        chart = compute_chart([a, b])
    elif compared == "bits per byte":
        chart = bits_per_byte_chart([a, b])
    return Section("curves", "Curves", (chart,), in_terminal=False) if chart else None


def _settings(a: RunReport, b: RunReport) -> Section:
    heading = "What differs in the schedules"
    found = differing_settings(a, b)
    if found is None:
        return Section("settings", heading, (Paragraph("Not known: only the ledger of a run is here.", "note"),))
    if not found:
        return Section("settings", heading, (Paragraph("Nothing but the name."),))
    columns = [Column(heading, is_number=False) for heading in ("key", "A", "B", "unit")]
    rows = [(Cell(setting.key), _value(setting.a), _value(setting.b), Cell(setting.unit or "")) for setting in found]
    return Section("settings", heading, (Table.of("settings", columns, rows),))


def _value(value: Any) -> Cell:
    return Cell("-", why="Not set.") if value is None else Cell(shown(value))
