"""The commands `ledger export` and `ledger import`. Slow modules are imported on use."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, RunsDir, runs_argument
from growctl.text.escaping import say

ledger_app = typer.Typer(
    name="ledger",
    help=(
        "Export the cost records of runs as tables, or import those of other machines.\n\n"
        "Example: growctl ledger export quickstart --to csv --output quickstart-ledger"
    ),
    no_args_is_help=True,
)


@ledger_app.command("export")
def export_ledger(
    output: Annotated[Path, typer.Option(help="Directory for the tables; must not exist yet.", metavar="DIR")],
    to: Annotated[Literal["csv", "json", "parquet"], typer.Option(help="The format to write.")],
    runs: Annotated[list[str] | None, runs_argument("Runs to export (default: all).")] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Write the ledgers of runs as tables for other programs, a file each: runs, stages, work, evaluations, scores.

    Example: growctl ledger export quickstart --to parquet --output quickstart-ledger
    """
    from growctl.ledger_exchange.export import export_ledgers
    from growctl.text.documents import print_document
    from stages.checkpoint.directory import check_new
    from stages.counted import counted

    check_new(output, "--output")
    document = export_ledgers(runs_dir, runs or [], to, output)
    if as_json:
        print_document(document)
        return
    for table in document.tables.values():
        say(f"{output / table.file}: {counted(table.num_rows, 'row')}")


@ledger_app.command("import")
def import_ledger(
    sources: Annotated[
        list[Path], typer.Argument(help="Ledgers (ledger.db), runs or runs directories.", metavar="FILE_OR_DIR")
    ],
    prefix: Annotated[
        str, typer.Option(help="What the names of the runs begin with here.", metavar="TEXT", show_default=False)
    ] = "",
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Copy ledgers of other machines into the runs directory, so that one report shows them all.

    Each becomes a run without checkpoints. Import it again to bring it up to date. The source stays as it is.

    Example: growctl ledger import /mnt/cluster/runs --prefix cluster-
    """
    from growctl.ledger_exchange.importing import import_ledgers
    from growctl.text.documents import print_document

    document = import_ledgers(sources, runs_dir, prefix)
    if as_json:
        print_document(document)
        return
    said = {"imported": "imported from", "updated": "brought up to date from", "unchanged": "has all of"}
    for ledger in document.ledgers:
        say(f"{ledger.name}: {said[ledger.action]} {ledger.source}")
