"""What the runs of a report show together: headlines, seeds, sweeps, savings, and what each loss costs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from growctl.analysis.runs import RunReport
from growctl.loss_costs import cost_by_stage as stage_costs
from growctl.loss_costs import sections as equal_loss_sections
from growctl.seeds import headline, ladders, over_seeds, sweep
from growctl.seeds.grouping import Grouping
from growctl.seeds.replicates import label
from growctl.seeds.results import results
from growctl.text.formatting import short_count
from growctl.text.section import Paragraph, Section
from growctl.verdicts.compare import Comparison, EqualFlops, compare
from growctl.verdicts.family import Family, compare_family, price
from growctl.verdicts.verdict import verdict
from stages.counted import counted

METHOD = (
    ("Equal loss",
     "The report compares the FLOPs at which the controls reach the ladder's final loss. These are read off the "
     "controls' lower convex envelope: the loss is linear in the logarithm of the FLOPs between two measured points, "
     "without extrapolation. Only finished controls count, and only if they were trained like the ladder: same data, "
     "seed, model, context, batch, precision, optimizer, learning rate and validation windows, each with its own "
     "decay. Where the ladder's stages weight the sources of a mixture differently, its controls change these weights "
     "at the same shares of their own samples. The validation loss of a mixture always weights its sources by "
     "data.mixture."),
    ("What each loss costs",
     "The same in FLOPs, device time, money and energy, for every finished model whose learning rate has decayed. Each "
     "cost includes the start checkpoint, every stage before and reused work, and leaves out replayed work. A cost of "
     "which any part is not known is not known."),
    ("The best size from scratch",
     "It trains every size of the ladder alone for the same FLOPs and puts all of them under one envelope. A small "
     "model trained longer may beat both the ladder and the largest size."),
    ("The price of a family",
     "It is the cost of all stages and branches, against the sum of what the loss of each finished model costs from "
     "scratch."),
    ("Noise",
     "Differences smaller than those between seeds are not significant, and one seed is weak evidence."),
)  # fmt: skip


def sections(runs: Sequence[RunReport], grouping: Grouping) -> list[Section | None]:
    """The headline, and then every comparison."""
    found = results(runs, grouping)
    several = found.with_several_seeds
    alone = [run for run in runs if run.control is None and run.name not in several]
    seeds = [run for run in runs if run.name in several]
    return [
        headline.section(found.headlines),
        over_seeds.section(found.seeds, found.swept),
        sweep.section(found.sweeps),
        ladders.section(found.ladders),
        _savings("savings", "What growing saved", runs, alone, found.cautions),
        _savings("savings-by-seed", "What growing saved, seed by seed", runs, seeds),
        equal_loss_sections.section(runs),
        equal_loss_sections.section_of_other_costs(runs),
    ]


cost_by_stage = stage_costs.section


def _savings(
    key: str, heading: str, runs: Sequence[RunReport], chosen: Sequence[RunReport], cautions: Collection[str] = ()
) -> Section | None:
    """The conclusions of every comparison, the most important first; a headline's `cautions` are not repeated."""
    parts: list[Paragraph] = []
    conclusions = verdicts(runs, chosen)
    for title, (result, *rest) in conclusions:
        new = (text for text in rest if len(conclusions) > 1 or text not in cautions)
        parts += [Paragraph(title, "heading"), Paragraph(result, "strong"), *map(Paragraph, new)]
    by_seed = key != "savings"
    return Section(key, heading, tuple(parts), in_terminal=not by_seed, is_detail=by_seed) if parts else None


def verdicts(runs: Sequence[RunReport], chosen: Sequence[RunReport] | None = None) -> list[tuple[str, tuple[str, ...]]]:
    """A heading and sentences for each comparison of one of `chosen` ladders, and of its finished models, with
    controls; None: all ladders."""
    conclusions: list[tuple[str, tuple[str, ...]]] = []
    alone: list[str] = []
    for ladder in [run for run in runs if run.control is None] if chosen is None else chosen:
        comparisons, family = compare(ladder, runs), compare_family(ladder, runs)
        for comparison in comparisons:
            size = comparison.num_parameters
            what = f"{comparison.control}, {short_count(size)} parameters" if size else "the best size from scratch"
            conclusions.append((f"{ladder.name} against {what}", verdict(comparison)))
        if not comparisons and not (family and any(model.points or model.excluded for model in family.models)):
            alone += [] if ladder.controls_to_come else [ladder.name]
        if ladder.controls_to_come:
            names = ", ".join(f"{label(control.name)} ({control.state})" for control in ladder.controls_to_come)
            conclusions.append((f"{ladder.name}: controls to come", (f"Still to come: {names}.",)))
        if family:
            for model in family.models:
                conclusions.append((f"{model.ladder.name} against its size from scratch", verdict(model)))
            models = counted(len(family.models), "finished model")
            conclusions.append((f"{ladder.name}: the price of {models}", price(family)))
    if alone:
        what = "They have" if len(alone) > 1 else "It has"
        conclusions.append((", ".join(alone), (f"{what} no controls, so the saving from growing is unknown.",)))
    return conclusions


@dataclass(frozen=True, kw_only=True)
class ComparisonEntry:
    """A ladder compared with its controls of one kind."""

    control: str
    """The kind of the controls."""
    num_parameters: int | None
    """Their size; None for `best-scratch`, which compares with every size of the ladder."""
    control_runs: tuple[str, ...]
    """The names of the controls that count."""
    flops_to_equal_loss: float | None
    """FLOPs that the controls need for the ladder's final loss; None if they do not bracket it."""
    saving: float | None
    """`flops_to_equal_loss` / the ladder's FLOPs; below 1, growing cost more."""
    equal_flops: EqualFlops | None
    """The comparison at equal FLOPs; None if no control has them."""
    verdict: tuple[str, ...]
    """The conclusions, one sentence each, the most important first."""


@dataclass(frozen=True, kw_only=True)
class ModelEntry(ComparisonEntry):
    """A finished model of a ladder compared with controls of its own size."""

    stage: str


@dataclass(frozen=True)
class FamilyEntry:
    """All finished models of a ladder compared with controls of their own sizes."""

    flops: float
    """FLOPs of all of them by growing: every stage up to the last of them once, and every release."""
    flops_from_scratch: float | None
    """FLOPs for the losses of all of them from scratch; None unless controls bracket each of them."""
    saving: float | None
    """`flops_from_scratch` / `flops`; below 1, growing cost more."""
    models: tuple[ModelEntry, ...]
    verdict: tuple[str, ...]
    """The conclusions, one sentence each."""


def comparison_entries(run: RunReport, runs: Sequence[RunReport]) -> tuple[ComparisonEntry, ...]:
    """A ladder's comparisons with its controls; empty for a control."""
    return () if run.control else tuple(ComparisonEntry(**_figures(each)) for each in compare(run, runs))


def family_entry(run: RunReport, runs: Sequence[RunReport]) -> FamilyEntry | None:
    """None for a control, and for a ladder without releases and without controls of each size."""
    family: Family | None = None if run.control else compare_family(run, runs)
    if family is None:
        return None
    return FamilyEntry(
        flops=family.flops,
        flops_from_scratch=family.flops_from_scratch,
        saving=family.saving,
        models=tuple(ModelEntry(stage=model.ladder.stages[-1].name, **_figures(model)) for model in family.models),
        verdict=tuple(price(family)),
    )


def _figures(comparison: Comparison) -> dict[str, Any]:
    return {
        "control": comparison.control,
        "num_parameters": comparison.num_parameters,
        "control_runs": comparison.control_runs,
        "flops_to_equal_loss": comparison.flops_to_equal_loss,
        "saving": comparison.saving,
        "equal_flops": None if comparison.missing_sizes else comparison.equal_flops,
        "verdict": verdict(comparison),
    }
