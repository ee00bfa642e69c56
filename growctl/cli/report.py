"""The commands `report` and `compare`. Slow modules are imported on use."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, Result, RunsDir, complete_run, prints, runs_argument, unusable
from growctl.text.escaping import say

_RUN = "a run's name, or the path of its directory."


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
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Write the files into this directory. Default: RUN/report for one ladder with its controls, "
            ".reports/NAME in the runs directory for several.",
            metavar="DIR",
        ),
    ] = None,
    figures: Annotated[
        Literal["png", "svg", "pdf"] | None, typer.Option("--figures", help="Write every chart as such a file.")
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Print every section and every run, not only the most important ones.")
    ] = False,
    law: Annotated[
        Path | None, typer.Option(help="Show what this law, of `growctl law fit`, predicts beside what was measured.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what growing saved or lost against training from scratch, and what every stage cost.

    Example: growctl report quickstart

    Example: growctl report quickstart --details

    Example: growctl report --group-by learning_rate.peak

    Example: growctl report quickstart --figures pdf --output paper
    """
    from growctl.law.formula import read_law
    from growctl.report.documents import report_document, report_folder, write_report
    from growctl.report.sections import newest_sections, report_sections
    from growctl.runs.find import find_runs
    from growctl.runs.status import with_controls_to_come
    from growctl.runs_dir import ReportPaths
    from growctl.text.console import Terminal
    from growctl.text.documents import print_document
    from growctl.text.terminal import print_sections

    keys = group_by or []
    if as_json and law:
        raise unusable("--json: not with --law, whose section has no JSON; leave one out")
    fitted = read_law(law) if law else None
    reported = with_controls_to_come(find_runs(runs_dir, runs or []), runs_dir)
    if as_json:
        print_document(report_document(reported, keys))
        if not (output or figures):
            return
    sections = report_sections(reported, keys, ["growctl", *sys.argv[1:]], fitted)
    if not as_json:
        are_all = details or runs or keys
        print_sections(sections if are_all or law else newest_sections(reported), Terminal(), details=details)
    paths = ReportPaths(output) if output else report_folder(reported, runs_dir, are_all=not runs)
    try:
        write_report(reported, sections, paths, figures)
    except OSError as error:
        if output:
            raise
        say(f"\nNo page was written: {error.strerror}: {paths.directory}. --output writes it elsewhere.", error=True)
        return
    if not as_json:
        say(f"\nCharts and tables: {paths.page}")
        if not details:
            say("Every section and run, here: --details")


@prints
def compare(
    first: Annotated[str, typer.Argument(help=f"Run A: {_RUN}", metavar="A", autocompletion=complete_run)],
    second: Annotated[str, typer.Argument(help=f"Run B: {_RUN}", metavar="B", autocompletion=complete_run)],
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
) -> Result:
    """Compare two runs: which is better, what they cost, and every condition in which they differ.

    Example: growctl compare quickstart quickstart-2

    Example: growctl compare quickstart /mnt/cluster/runs/quickstart
    """
    from growctl.analysis.groups import lone
    from growctl.analysis.results import compare as compared
    from growctl.report.results import compare_sections
    from growctl.runs.find import find_pair

    a, b = find_pair(first, second, runs_dir)
    pair = compared(lone(a), lone(b))
    return Result(pair, compare_sections(pair, a, b))
