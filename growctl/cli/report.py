"""The command `report`. Slow modules are imported on use."""

import sys
from typing import Annotated

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, RunsDir, runs_argument
from growctl.text.escaping import say


def report(
    runs: Annotated[list[str] | None, runs_argument("Runs to report on (default: all).")] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    group_by: Annotated[
        list[str] | None,
        typer.Option(
            "--group-by",
            help="Keep runs apart that differ in KEY: seed, schedule, or a dotted key of the schedule such as "
            "learning_rate.peak. Repeatable. By default, runs that differ in nothing but their seed belong together.",
            metavar="KEY",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare compute and perplexity for every stage and growth, and show what growing saved or lost.

    Example: growctl report quickstart

    Example: growctl report --group-by learning_rate.peak
    """
    from growctl.documents.output import print_document
    from growctl.report.documents import report_document
    from growctl.report.find import find_runs
    from growctl.report.group_by import read_grouping
    from growctl.runs_dir import RunPaths
    from growctl.status.controls_to_come import with_controls_to_come
    from growctl.text.console import Terminal

    found = with_controls_to_come(find_runs(runs_dir, runs or []), runs_dir)
    grouping = read_grouping(found, group_by or [])
    if as_json:
        print_document(report_document(found, grouping))
        return
    from growctl.content.terminal import print_sections
    from growctl.report.sections import report_sections
    from growctl.report_page.files import write_report

    sections = report_sections(found, grouping, ["growctl", *sys.argv[1:]])
    print_sections(sections, Terminal())
    ladder = next((run for run in found if run.control is None), found[0])
    page = write_report(found, sections, RunPaths(ladder.directory).report)
    say(f"\nCharts and tables: {page}")
