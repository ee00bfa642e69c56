"""The command `report`. Slow modules are imported on use."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, RunsDir, runs_argument
from growctl.text.escaping import say
from model.errors import UserError

if TYPE_CHECKING:
    from growctl.content.section import Section
    from growctl.report.grouping import Grouping
    from growctl.report.read import RunReport
    from growctl.text.console import Terminal


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
    overlay: Annotated[
        list[str] | None,
        typer.Option(
            "--overlay",
            help="Show published figures beside the runs: paper-openwebtext, paper-growth-methods, paper-pile, "
            "readme-openwebtext2, or a file like theirs. They are labelled as published, and no verdict uses them. "
            "Repeatable.",
            metavar="NAME|FILE",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Draw the report again every few seconds while runs go on. Writes no files.")
    ] = False,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Print plain lines without colour and columns, for logs and screen readers."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare compute and perplexity for every stage and growth, and show what growing saved or lost.

    Example: growctl report quickstart

    Example: growctl report --group-by learning_rate.peak

    Example: growctl report quickstart --overlay paper-openwebtext

    Example: growctl report quickstart --watch
    """
    from growctl.documents.output import print_document
    from growctl.report.changed_runs import ChangedRuns
    from growctl.report.documents import report_document
    from growctl.report.find import find_runs
    from growctl.report.group_by import read_grouping
    from growctl.report.overlays import load_overlay
    from growctl.runs_dir import RunPaths
    from growctl.status.controls_to_come import with_controls_to_come
    from growctl.text.console import Terminal

    console = Terminal()
    _check_output(console, watch=watch, plain=plain, as_json=as_json)
    overlays = [load_overlay(name) for name in overlay or []]
    reader = ChangedRuns()

    def read() -> "tuple[list[RunReport], Grouping]":
        found = with_controls_to_come(find_runs(runs_dir, runs or [], reader.read), runs_dir)
        return found, read_grouping(found, group_by or [])

    if as_json:
        print_document(report_document(*read(), overlays))
        return
    from growctl.content.plain import print_plain
    from growctl.content.terminal import print_sections
    from growctl.report.sections import report_sections
    from growctl.report.sparklines import with_losses

    if watch:
        from growctl.cli.watch import watch_report

        def draw() -> "list[Section]":
            found, grouping = read()
            return with_losses(report_sections(found, grouping, overlays=overlays), found, after=None)

        watch_report(draw, console)
        return
    from growctl.report_page.files import write_report

    found, grouping = read()
    sections = report_sections(found, grouping, ["growctl", *sys.argv[1:]], overlays)
    if plain:
        print_plain(with_losses(sections, found, after="stages", draws=False), say)
    else:
        print_sections(with_losses(sections, found, after="stages"), console)
    ladder = next((run for run in found if run.control is None), found[0])
    page = write_report(found, sections, RunPaths(ladder.directory).report)
    say(f"\nCharts and tables: {page}")


def _check_output(console: "Terminal", *, watch: bool, plain: bool, as_json: bool) -> None:
    """Raises UserError for options that exclude each other, and if nothing can be drawn again and again."""
    chosen = [name for name, given in (("--watch", watch), ("--plain", plain), ("--json", as_json)) if given]
    if len(chosen) > 1:
        raise UserError(f"{' and '.join(chosen[:2])}: give one of them, because each is another form of the report")
    if watch and not console.is_terminal:
        raise UserError("--watch: standard output is not a terminal; leave --watch out to print the report once")
