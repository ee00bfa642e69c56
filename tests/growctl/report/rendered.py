"""The page of a report."""

from collections.abc import Sequence

from growctl.report.documents import report_title
from growctl.report.page import render_page
from growctl.report.sections import report_sections
from growctl.runs.runs import RunReport


def page_of(runs: Sequence[RunReport]) -> str:
    """The page of the report on `runs`."""
    return render_page(report_title(runs), report_sections(runs))
