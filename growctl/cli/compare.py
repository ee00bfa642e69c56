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
    first: Annotated[str, typer.Argument(help=f"Run A: {_RUN}", metavar="A", autocompletion=complete_run)],
    second: Annotated[str, typer.Argument(help=f"Run B: {_RUN}", metavar="B", autocompletion=complete_run)],
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    output: Annotated[
        Path | None, typer.Option(help=f"Directory for a page with the curves of both, {PAGE}.", metavar="DIR")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: which is better, what they cost, and every condition in which they differ.

    Example: growctl compare quickstart quickstart-2

    Example: growctl compare quickstart /mnt/cluster/runs/quickstart --output comparison
    """
    from growctl.analysis.groups import lone
    from growctl.analysis.results import compare as compared
    from growctl.report.results import compare_sections
    from growctl.runs.find import find_pair
    from growctl.text.terminal import print_result

    a, b = find_pair(first, second, runs_dir)
    pair = compared(lone(a), lone(b))
    sections = compare_sections(pair, a, b)
    print_result(pair, sections, as_json=as_json)
    if output is not None:
        from growctl.report.compute import compute_chart
        from growctl.report.page import render_page
        from growctl.text.section import Section
        from growctl.whole_file import replace_file

        if not pair.why_not:
            sections.append(Section("curves", "Curves", (compute_chart([a, b]),), in_terminal=False))
        output.mkdir(parents=True, exist_ok=True)
        replace_file(output / PAGE, render_page(f"{a.name} and {b.name}", sections).encode())
        if not as_json:
            say(f"\nPage: {output / PAGE}")
