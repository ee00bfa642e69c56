"""The warnings of a report: what may make its comparisons worthless."""

from collections.abc import Sequence

from growctl.analysis.data_groups import data_warning
from growctl.analysis.runs import RunReport
from growctl.report.validation import validation_warnings
from growctl.text.section import Paragraph, Section


def section(runs: Sequence[RunReport]) -> Section | None:
    """The warnings for all runs; None without any."""
    texts = [*filter(None, [data_warning(runs)]), *validation_warnings(runs)]
    return Section("warnings", "Warnings", tuple(Paragraph(text, "warning") for text in texts)) if texts else None
