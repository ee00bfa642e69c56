"""The command `compare`. Slow modules are imported on use."""

from pathlib import Path
from typing import Annotated

import typer

from growctl.cli.completion import complete_run
from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, RunsDir
from growctl.text.escaping import say

PAGE = "compare.html"
"""The page in the directory of --output."""

_RUN = "a run's name, or the path of its directory."


def compare(
    first: Annotated[
        str, typer.Argument(help=f"Run A: {_RUN}", metavar="A", autocompletion=complete_run, show_default=False)
    ],
    second: Annotated[
        str, typer.Argument(help=f"Run B: {_RUN}", metavar="B", autocompletion=complete_run, show_default=False)
    ],
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    output: Annotated[
        Path | None,
        typer.Option(help=f"Directory for a page with the curves of both, {PAGE}.", metavar="DIR", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: how fair that is, which is better, what they cost, and what differs in their schedules.

    Example: growctl compare quickstart quickstart-2

    Example: growctl compare quickstart /mnt/cluster/runs/quickstart --output comparison
    """
    from growctl.compare.find import find_pair, runs_of_sets

    a, b = find_pair(first, second, runs_dir)
    runs = runs_of_sets(a, b)
    if as_json:
        from growctl.compare.document import compare_document
        from growctl.documents.output import print_document

        print_document(compare_document(a, b, runs))
    if output is None and as_json:
        return
    from growctl.compare.sections import compare_sections

    sections = compare_sections(a, b, runs)
    if not as_json:
        from growctl.text.console import Terminal
        from growctl.text.terminal import print_sections

        print_sections(sections, Terminal())
    if output is not None:
        from growctl.report.page import render_page
        from growctl.whole_file import replace_file

        output.mkdir(parents=True, exist_ok=True)
        replace_file(output / PAGE, render_page(f"{a.name} and {b.name}", sections).encode())
        if not as_json:
            say(f"\nPage: {output / PAGE}")
