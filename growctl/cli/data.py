"""The commands `data show`, `data import`, `ledger export` and `ledger import`.

Slow modules are imported on use.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, Overrides, Result, RunsDir, complete_schedule, prints, runs_argument
from growctl.text.progress import progress_bar

data_app = typer.Typer(
    name="data",
    help="Show prepared datasets, and import tokens.\n\nExample: growctl data show quickstart",
    no_args_is_help=True,
)
ledger_app = typer.Typer(
    name="ledger",
    help=(
        "Export the costs of runs as a table, or import the ledgers of other machines.\n\n"
        "Example: growctl ledger export quickstart --output quickstart-costs.csv"
    ),
    no_args_is_help=True,
)


@data_app.command()
@prints
def show(
    dataset: Annotated[
        str,
        typer.Argument(
            help="A dataset's directory, or a schedule whose dataset is prepared.",
            metavar="DIR|SCHEDULE",
            autocompletion=complete_schedule,
        ),
    ],
    overrides: Overrides = None,
    sample: Annotated[
        int | None,
        typer.Option(
            help="Show instead the text of the sample that training on the schedule reads at this index, counted from "
            "0; with several contexts, of the window of the longest.",
            metavar="INDEX",
            min=0,
            max=2**62,  # 64-bit indices overflow soon after
        ),
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
) -> Result:
    """Show what a prepared dataset holds: tokens, documents and their lengths, compression, sources of a mixture.

    With --sample, show exactly the text that training reads there.

    Example: growctl data show quickstart

    Example: growctl data show quickstart --sample 123456
    """
    from growctl.data.show import data_section, sample_lines, show_dataset

    document = show_dataset(dataset, overrides or [], runs_dir, sample)
    shown = [data_section(document)] if document.sample is None else sample_lines(document.sample)
    return Result(document, shown)


@data_app.command("import")
@prints
def import_data(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="PREFIX of PREFIX.bin and PREFIX.idx (Megatron-LM, GPT-NeoX), a .ds file (datatrove), with --dtype a "
            ".bin of raw tokens (nanoGPT, llm.c), or a folder of them.",
            metavar="PREFIX",
        ),
    ],
    output: Annotated[Path, typer.Option(help="Directory for the dataset; must not exist yet.", metavar="DIR")],
    tokenizer: Annotated[
        str,
        typer.Option(
            help="What the files were written with: a tokenizer.json, a folder that holds one, or a name on the "
            "Hugging Face hub, such as gpt2.",
            metavar="TOKENIZER",
        ),
    ],
    dtype: Annotated[
        Literal["uint16", "uint32"] | None,
        typer.Option(
            help="The type of raw tokens. A document ends in the end of text; in a file without any, it is a piece of "
            "4,096 tokens."
        ),
    ] = None,
    end_of_text: Annotated[
        str, typer.Option(help="The tokenizer's token after each document.", metavar="TOKEN")
    ] = "<|endoftext|>",
    begin_of_text: Annotated[
        str | None, typer.Option(help="The token before each document (default: none).", metavar="TOKEN")
    ] = None,
    validation: Annotated[
        list[Path] | None, typer.Option(help="Files for validation, named like PREFIX; repeatable.", metavar="PREFIX")
    ] = None,
    validation_fraction: Annotated[
        float,
        typer.Option(
            help="Without --validation: the share of each file's documents with tokens, from its end, for validation.",
            min=0,
            max=1,
        ),
    ] = 0.01,
) -> Result:
    """Make a dataset of token files that another program wrote. On the same disk, they are linked, not copied.

    Example: growctl data import pile_text_document --tokenizer 20B_tokenizer.json --output pile

    Example: growctl data import train.bin --dtype uint16 --tokenizer gpt2 --validation val.bin --output openwebtext
    """
    from growctl.data.token_import import import_tokens
    from stages.checkpoint.directory import check_new
    from stages.counted import counted

    check_new(output, "--output")
    with progress_bar("checking indices") as advance:
        document = import_tokens(
            sources,
            output,
            tokenizer,
            end_of_text=end_of_text,
            begin_of_text=begin_of_text,
            dtype=dtype,
            validation=validation or [],
            validation_fraction=validation_fraction,
            on_progress=lambda what, done: advance(done or 0.0, what=what),
        )
    splits = document.manifest.splits
    lines = [f"{name}: {split}" for name, split in splits.items()]
    if document.linked_files:
        files = counted(len(document.linked_files), "file")
        lines.append(f"shares {files} with the source: leave their content as it is")
    if num_unended := sum(split.num_unended_documents for split in splits.values()):
        lines.append(f"{counted(num_unended, 'document')} without {end_of_text} at the end, left as they are")
    if dtype and num_unended == sum(split.num_documents for split in splits.values()):
        lines[-1] = f"without {end_of_text}, each document is a piece of the file"
    return Result(document, [*lines, str(output)])


@ledger_app.command("export")
@prints
def export_ledger(
    output: Annotated[
        Path, typer.Option(help="The .csv or .parquet file to write; must not exist yet.", metavar="FILE")
    ],
    runs: Annotated[list[str] | None, runs_argument("Runs to export (default: all).")] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
) -> Result:
    """Write the costs of runs as one table (CSV or Parquet) for other programs, a row for each piece of work.

    Example: growctl ledger export quickstart --output quickstart-costs.csv
    """
    from growctl.ledger.exchange import export_ledgers
    from growctl.runs.find import find_ledgers
    from stages.checkpoint.directory import check_new
    from stages.counted import counted

    check_new(output, "--output")
    document = export_ledgers(find_ledgers(runs_dir, runs or []), output)
    return Result(document, [f"{output}: {counted(document.num_rows, 'row')}"])


@ledger_app.command("import")
@prints
def import_ledger(
    sources: Annotated[
        list[Path], typer.Argument(help="Ledgers (ledger.db), runs or runs directories.", metavar="FILE_OR_DIR")
    ],
    prefix: Annotated[str, typer.Option(help="What the names of the runs begin with here.", metavar="TEXT")] = "",
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
) -> Result:
    """Copy ledgers of other machines into the runs directory, so that one report shows them all.

    Each becomes a run without checkpoints. Import it again to bring it up to date. The source stays as it is.

    Example: growctl ledger import /mnt/cluster/runs --prefix cluster-
    """
    from growctl.ledger.exchange import import_ledgers

    document = import_ledgers(sources, runs_dir, prefix)
    return Result(document, [f"{each.name}: imported from {each.source}" for each in document.ledgers])
