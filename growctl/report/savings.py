"""What growing saved: the conclusions of every comparison of a ladder with its controls."""

from collections.abc import Collection, Sequence

from growctl.analysis.runs import RunReport
from growctl.seeds.replicates import label
from growctl.text.formatting import short_count
from growctl.text.section import Paragraph, Section
from growctl.verdicts.compare import compare
from growctl.verdicts.family import compare_family, price
from growctl.verdicts.verdict import verdict
from stages.counted import counted


def section(runs: Sequence[RunReport], several: Collection[str] = (), said: Collection[str] = ()) -> Section | None:
    """The conclusions, the most important of each comparison first; None without a ladder.

    `several`: ladders with several seeds. They are left to `section_by_seed`. `said`: the cautions of the headline,
    which a single comparison does not repeat.
    """
    parts = _parts(runs, [run for run in runs if run.control is None and run.name not in several], said)
    return Section("savings", "What growing saved", parts) if parts else None


def section_by_seed(runs: Sequence[RunReport], several: Collection[str]) -> Section | None:
    """The conclusions for each of the ladders `several` alone, as details: those over all seeds count."""
    parts = _parts(runs, [run for run in runs if run.name in several])
    heading = "What growing saved, seed by seed"
    return Section("savings-by-seed", heading, parts, in_terminal=False, is_detail=True) if parts else None


def _parts(
    runs: Sequence[RunReport], ladders: Sequence[RunReport], said: Collection[str] = ()
) -> tuple[Paragraph, ...]:
    parts: list[Paragraph] = []
    found = verdicts(runs, ladders)
    for heading, (result, *rest) in found:
        new = (text for text in rest if len(found) > 1 or text not in said)
        parts += [Paragraph(heading, "heading"), Paragraph(result, "strong"), *map(Paragraph, new)]
    return tuple(parts)


def verdicts(
    runs: Sequence[RunReport], ladders: Sequence[RunReport] | None = None
) -> list[tuple[str, tuple[str, ...]]]:
    """A heading and sentences for each comparison of one of `ladders`, and of its finished models, with controls.

    `ladders`: by default, all of `runs`.
    """
    said: list[tuple[str, tuple[str, ...]]] = []
    alone: list[str] = []
    for ladder in [run for run in runs if run.control is None] if ladders is None else ladders:
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
            said.append((f"{ladder.name}: the price of {counted(len(family.models), 'finished model')}", price(family)))
    if alone:
        what = "They have" if len(alone) > 1 else "It has"
        said.append((", ".join(alone), (f"{what} no controls, so the saving from growing is unknown.",)))
    return said


def to_come(ladder: RunReport) -> str | None:
    """A sentence on the controls that are not finished; None if there are none."""
    names = [f"{label(control.name)} ({control.state})" for control in ladder.controls_to_come]
    return f"Still to come: {', '.join(names)}." if names else None
