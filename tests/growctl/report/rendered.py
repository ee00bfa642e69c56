"""The page of a report, and sections as the terminal shows them."""

import io
from collections.abc import Sequence

from growctl.report.documents import report_title
from growctl.report.page import render_page
from growctl.report.sections import report_sections
from growctl.runs.runs import RunReport
from growctl.text.console import Terminal
from growctl.text.section import Section
from growctl.text.terminal import print_sections


def page_of(runs: Sequence[RunReport]) -> str:
    """The page of the report on `runs`."""
    return render_page(report_title(runs), report_sections(runs))


def lines_of(sections: Sequence[Section], *, details: bool = False, width: int = 400) -> list[str]:
    """What a terminal shows of `sections`."""
    out = io.StringIO()
    print_sections(sections, Terminal(file=out, width=width), details=details)
    return [line.strip() for line in out.getvalue().splitlines()]
