"""Writes the report as files: a self-contained HTML page, its chart as PNG, its table as CSV."""

from collections.abc import Sequence
from pathlib import Path

from growctl.content.section import Section
from growctl.report import plots
from growctl.report.documents import stages_csv
from growctl.report.read import RunReport
from growctl.report_page.page import render_page
from growctl.runs_dir import ReportPaths
from growctl.text.html import replace_file

MOST_NAMES = 3
"""More ladders than this are counted in the title, not named."""


def write_report(runs: Sequence[RunReport], sections: Sequence[Section], paths: ReportPaths) -> Path:
    """Writes the page of `sections`, and the chart and the table of `runs`; returns the page's path."""
    paths.directory.mkdir(parents=True, exist_ok=True)
    replace_file(paths.chart, plots.png(runs))
    replace_file(paths.table, stages_csv(runs).encode())
    replace_file(paths.page, render_page(report_title(runs), sections).encode())
    return paths.page


def report_title(runs: Sequence[RunReport]) -> str:
    """The title of the report on `runs`: what their ladders are called, sets of runs by the name of the set."""
    ladders = [run.group or run.name for run in runs if run.control is None] or [run.name for run in runs]
    names = list(dict.fromkeys(ladders))
    left_out = len(names) - MOST_NAMES
    shown = ", ".join(names[:MOST_NAMES]) + (f" and {left_out} more" if left_out > 0 else "")
    return f"The cost of growing: {shown}"
