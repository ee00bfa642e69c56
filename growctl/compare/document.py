"""The comparison of two runs as values for scripts."""

from collections.abc import Sequence
from dataclasses import dataclass

from growctl.analysis.data_groups import Comparable, what_compares
from growctl.analysis.runs import RunReport
from growctl.compare.better import Outcome, outcome
from growctl.compare.figures import figures
from growctl.compare.schedules import SettingDifference, differing_settings
from growctl.verdicts.fairness import Difference, fairness


@dataclass(frozen=True)
class ComparedFigure:
    """A cost or a loss of runs A and B."""

    name: str
    """`validation_loss`, `perplexity`, `bits_per_byte`, `parameters`, `steps`, `tokens`, `flops`, `device_hours`,
    `money`, `gpu_energy` or `cpu_energy`."""
    unit: str
    """Empty for counts."""
    a: float | None
    """None if it is not known; so is `b`."""
    b: float | None
    why_not: str
    """Why the two must not be compared; empty if they may."""


@dataclass(frozen=True)
class CompareDocument:
    """How two runs compare. Unknown and non-finite values are null."""

    a: str
    """The name of run A; its path, if both have the same name."""
    b: str
    comparable: Comparable
    """What compares their losses, as far as their data decides it: `loss`, only `bits per byte`, or `nothing`."""
    fairness: tuple[Difference, ...]
    """What differs in a way that matters for a comparison, what may matter most first."""
    outcome: Outcome
    figures: tuple[ComparedFigure, ...]
    settings: tuple[SettingDifference, ...] | None
    """The keys in which their resolved schedules differ; null if a run has no schedule here, because only its ledger
    was imported."""


def compare_document(a: RunReport, b: RunReport, runs: Sequence[RunReport]) -> CompareDocument:
    """The comparison of `a` and `b`; `runs`: those of their sets."""
    return CompareDocument(
        *(a.name, b.name),
        comparable=what_compares(a, b),
        fairness=fairness(a, b, runs),
        outcome=outcome(a, b),
        figures=tuple(
            ComparedFigure(found.key, found.unit, found.a, found.b, found.why_not) for found in figures(a, b)
        ),
        settings=differing_settings(a, b),
    )
