"""The commands `ledger export` and `ledger import`. Slow modules are imported on use."""

from pathlib import Path
from typing import Annotated

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, RunsDir, runs_argument
from growctl.text.escaping import say

ledger_app = typer.Typer(
    name="ledger",
    help=(
        "Export the costs of runs as a table, or import the ledgers of other machines.\n\n"
        "Example: growctl ledger export quickstart --output quickstart-costs.csv"
    ),
    no_args_is_help=True,
)


@ledger_app.command("export")
def export_ledger(
    output: Annotated[Path, typer.Option(help="The CSV file to write; must not exist yet.", metavar="FILE")],
    runs: Annotated[list[str] | None, runs_argument("Runs to export (default: all).")] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Write the costs of runs as one CSV table for other programs, a row for each piece of work.

    Example: growctl ledger export quickstart --output quickstart-costs.csv
    """
    from growctl.ledger.exchange import export_ledgers
    from growctl.runs.find import find_ledgers
    from growctl.text.documents import print_document
    from stages.checkpoint.directory import check_new
    from stages.counted import counted

    check_new(output, "--output")
    document = export_ledgers(find_ledgers(runs_dir, runs or []), output)
    if as_json:
        print_document(document)
    else:
        say(f"{output}: {counted(document.num_rows, 'row')}")


@ledger_app.command("import")
def import_ledger(
    sources: Annotated[
        list[Path], typer.Argument(help="Ledgers (ledger.db), runs or runs directories.", metavar="FILE_OR_DIR")
    ],
    prefix: Annotated[str, typer.Option(help="What the names of the runs begin with here.", metavar="TEXT")] = "",
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Copy ledgers of other machines into the runs directory, so that one report shows them all.

    Each becomes a run without checkpoints. Import it again to bring it up to date. The source stays as it is.

    Example: growctl ledger import /mnt/cluster/runs --prefix cluster-
    """
    from growctl.ledger.exchange import import_ledgers
    from growctl.text.documents import print_document

    document = import_ledgers(sources, runs_dir, prefix)
    if as_json:
        print_document(document)
        return
    said = {"imported": "imported from", "updated": "brought up to date from", "unchanged": "has all of"}
    for ledger in document.ledgers:
        say(f"{ledger.name}: {said[ledger.action]} {ledger.source}")
