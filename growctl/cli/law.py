"""The commands `law fit` and `law plot`. Slow modules are imported on use."""

from pathlib import Path
from typing import Annotated, get_args

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, Result, RunsDir, prints, runs_argument, unusable

law_app = typer.Typer(
    name="law",
    help="Predict from runs whether growing pays.\n\nExample: growctl law fit --output law.json",
    no_args_is_help=True,
)


@law_app.command()
@prints
def fit(
    output: Annotated[Path, typer.Option(help="The file to write. An existing one is replaced.", metavar="FILE")],
    runs: Annotated[list[str] | None, runs_argument("Runs to fit on, with their controls (default: all).")] = None,
    held_out: Annotated[
        list[str] | None, typer.Option(help="A run that only tests the law, with its controls.", metavar="RUN")
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
) -> Result:
    """Fit the law to the finished models of runs: from scratch, and grown. docs/law.md says which runs it needs.

    Example: growctl law fit --held-out test-1 --held-out test-2 --output law.json
    """
    from growctl.law.fit import fit_law
    from growctl.report.law import fit_sections
    from growctl.runs.find import find_runs
    from growctl.text.documents import document_text
    from growctl.whole_file import replace_file

    law = fit_law(find_runs(runs_dir, runs or []), find_runs(runs_dir, held_out) if held_out else [])
    replace_file(output, (document_text(law) + "\n").encode())
    return Result(law, [*fit_sections(law), f"{output}: written"])


@law_app.command()
def plot(
    law: Annotated[Path, typer.Argument(help="What `growctl law fit` wrote.", metavar="LAW")],
    output: Annotated[Path, typer.Option(help="The .png, .svg or .pdf file to write.", metavar="FILE")],
) -> None:
    """Draw measured against predicted losses, and losses against FLOPs with the best size from scratch.

    Example: growctl law plot law.json --output law.png
    """
    from growctl.law.formula import read_law
    from growctl.report.chart import FigureFormat
    from growctl.report.law import law_figure
    from growctl.whole_file import replace_file

    kind = next((kind for kind in get_args(FigureFormat) if output.suffix == f".{kind}"), None)
    if kind is None:
        raise unusable(f"--output {output}: must end in .png, .svg or .pdf")
    replace_file(output, law_figure(read_law(law), kind))
