"""Arguments and options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

ScheduleName = Annotated[
    str, typer.Argument(help="A schedule file, or the name of a shipped schedule.", metavar="SCHEDULE")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Overrides of the schedule, in hydra's syntax.", metavar="[KEY=VALUE]..."),
]
RunsDir = Annotated[
    Path,
    typer.Option("--runs-dir", envvar="GROWCTL_RUNS_DIR", help="Directory that holds the runs.", show_default=True),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]

DEFAULT_RUNS_DIR = Path("runs")
