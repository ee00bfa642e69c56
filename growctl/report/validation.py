"""Warns of validation sets that are too small for the losses of a report."""

from collections.abc import Sequence

from growctl.analysis.runs import RunReport
from stages.data.validation_size import small_validation


def validation_warning(run: RunReport) -> str | None:
    """The warning for the validation set of one run; None if it is large enough, or its size is not recorded."""
    if run.validation_documents is None or run.validation_tokens is None:
        return None
    return small_validation(
        run.validation_documents,
        run.validation_tokens,
        max_sequences=run.conditions.get("evaluation.max_sequences"),
        sequence_length=run.conditions.get("training.sequence_length", 1),
    )


def validation_warnings(runs: Sequence[RunReport]) -> list[str]:
    """The warnings for all runs, each once. Names the runs where a warning does not hold for all of them."""
    found: dict[str, list[str]] = {}
    for run in runs:
        if warning := validation_warning(run):
            found.setdefault(warning, []).append(run.name)
    return [
        warning if len(names) == len(runs) else f"{', '.join(names)}: {warning}" for warning, names in found.items()
    ]
