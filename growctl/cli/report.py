"""The command `report`. Slow modules are imported on use."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, RunsDir, runs_argument
from growctl.text.escaping import say
from model.errors import UserError

if TYPE_CHECKING:
    from growctl.content.section import Section
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
    if watch:
        _check_watch(console, plain=plain, as_json=as_json)
    if plain and as_json:
        raise UserError("--plain and --json: give one of them; --json prints no colour and no columns either")
    overlays = [load_overlay(name) for name in overlay or []]
    reader = ChangedRuns()

    def read() -> "list[RunReport]":
        return with_controls_to_come(find_runs(runs_dir, runs or [], reader.read), runs_dir)

    def sections(found: "Sequence[RunReport]", *, draws: bool = True) -> "list[Section]":
        shown = report_sections(found, read_grouping(found, group_by or []), overlays)
        lines = sparklines.section(found, draws=draws)
        keys = [section.key for section in shown]
        place = 0 if watch or "stages" not in keys else keys.index("stages") + 1
        return [*shown[:place], *([lines] if lines else []), *shown[place:]]

    if as_json:
        found = read()
        print_document(report_document(found, read_grouping(found, group_by or []), overlays))
        return
    from growctl.content.plain import print_plain
    from growctl.content.terminal import print_sections
    from growctl.report import sparklines
    from growctl.report.page import write_report
    from growctl.report.sections import report_sections

    if watch:
        from growctl.cli.watch import watch as watch_report

        watch_report(lambda: sections(read()), console)
        return
    found = read()
    if plain:
        print_plain(sections(found, draws=False), say)
    else:
        print_sections(sections(found), console)
    ladder = next((run for run in found if run.control is None), found[0])
    page = write_report(found, RunPaths(ladder.directory).report)
    say(f"\nCharts and tables: {page}")


def _check_watch(console: "Terminal", *, plain: bool, as_json: bool) -> None:
    """Raises UserError unless a report can be drawn again and again."""
    if plain or as_json:
        raise UserError(f"--watch and --{'plain' if plain else 'json'}: give one of them; --watch redraws the screen")
    if not console.is_terminal:
        raise UserError("--watch: standard output is not a terminal; leave --watch out to print the report once")
