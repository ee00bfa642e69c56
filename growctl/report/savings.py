"""What growing saved: the conclusions of every comparison of a ladder with its controls."""

from collections.abc import Sequence

from growctl.content.section import Paragraph, Section
from growctl.report.compare import compare
from growctl.report.family import compare_family, price
from growctl.report.read import RunReport
from growctl.report.replicates import label
from growctl.report.verdict import verdict
from growctl.text.formatting import short_count


def section(runs: Sequence[RunReport], is_detail: bool = False) -> Section | None:
    """The conclusions, the most important of each comparison first; None without a ladder.

    `is_detail`: the report has conclusions over seeds, which come before those of each ladder.
    """
    parts: list[Paragraph] = []
    for heading, (result, *rest) in verdicts(runs):
        parts += [Paragraph(heading, "heading"), Paragraph(result, "strong"), *map(Paragraph, rest)]
    return Section("savings", "What growing saved", tuple(parts), is_detail=is_detail) if parts else None


def verdicts(runs: Sequence[RunReport]) -> list[tuple[str, tuple[str, ...]]]:
    """A heading and sentences for each comparison of a ladder, and of its finished models, with controls."""
    said: list[tuple[str, tuple[str, ...]]] = []
    alone: list[str] = []
    for ladder in (run for run in runs if run.control is None):
        comparisons, family = compare(ladder, runs), compare_family(ladder, runs)
        for comparison in comparisons:
            size = comparison.num_parameters
            what = f"{comparison.control}, {short_count(size)} parameters" if size else "the best size from scratch"
            said.append((f"{ladder.name} against {what}", verdict(comparison)))
        if not comparisons and not (family and any(model.points or model.excluded for model in family.models)):
            alone += [] if ladder.controls_to_come else [ladder.name]
        if waiting := to_come(ladder):
            said.append((f"{ladder.name}: controls to come", (waiting,)))
        if family:
            for model in family.models:
                said.append((f"{model.ladder.name} against its size from scratch", verdict(model)))
            said.append((f"{ladder.name}: the price of a finished model of {len(family.models)} sizes", price(family)))
    if alone:
        what = "They have" if len(alone) > 1 else "It has"
        said.append((", ".join(alone), (f"{what} no controls, so the saving from growing is unknown.",)))
    return said


def to_come(ladder: RunReport) -> str | None:
    """A sentence on the controls that are not finished; None if there are none."""
    names = [f"{label(control.name)} ({control.state})" for control in ladder.controls_to_come]
    return f"Still to come: {', '.join(names)}." if names else None
