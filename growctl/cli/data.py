"""The commands `data show`, `data export` and `data import`. Slow modules are imported on use."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from growctl.cli.completion import complete_schedule
from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, Overrides, RunsDir
from growctl.text.escaping import say
from growctl.text.progress import progress_bar

data_app = typer.Typer(
    name="data",
    help="Show, export and import prepared datasets.\n\nExample: growctl data show quickstart",
    no_args_is_help=True,
)
_option = partial(typer.Option)


@data_app.command()
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
        _option(
            help="Show instead the text of the sample that training on the schedule reads at this index, counted from "
            "0; with several contexts, of the window of the longest.",
            metavar="INDEX",
            min=0,
        ),
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Show what a prepared dataset holds: tokens, documents and their lengths, compression, sources of a mixture.

    With --sample, show exactly what training reads there, cut where documents end.

    Example: growctl data show quickstart

    Example: growctl data show quickstart --sample 123456
    """
    from growctl.data.samples import sample_lines
    from growctl.data.show import data_section, show_dataset
    from growctl.text.colours import FAINT
    from growctl.text.console import Terminal, Verbatim
    from growctl.text.documents import print_document
    from growctl.text.terminal import print_sections

    document = show_dataset(dataset, overrides or [], runs_dir, sample)
    if as_json:
        print_document(document)
    elif document.sample is None:
        print_sections([data_section(document)], Terminal())
    else:
        for line, is_text in sample_lines(document.sample):
            Terminal().print(Verbatim(line), style=None if is_text else FAINT, soft_wrap=True)


@data_app.command("export")
def export_data(
    dataset: Annotated[
        Path, typer.Argument(help="A dataset: the directory that `growctl prepare` names.", metavar="DATASET")
    ],
    to: Annotated[
        Literal["megatron"],
        typer.Option(help="The format to write: megatron is that of Megatron-LM and GPT-NeoX, .bin and .idx."),
    ],
    output: Annotated[Path, typer.Option(help="Directory for the files; must not exist yet.", metavar="DIR")],
    as_json: AsJson = False,
) -> None:
    """Write a dataset's tokens for another program, split by split, with its tokenizer.

    Example: growctl data export runs/.datasets/texts-396a28ec70bd --to megatron --output texts-megatron
    """
    from growctl.data.exchange import export_megatron
    from growctl.text.documents import print_document
    from stages.checkpoint.directory import check_new
    from stages.counted import counted

    check_new(output, "--output")
    with progress_bar("checking the dataset") as advance:
        document = export_megatron(dataset, output, lambda what, done: advance(done or 0.0, what=what))
    if as_json:
        print_document(document)
        return
    manifest = document.manifest
    for name, split in manifest.splits.items():
        counts = f"{counted(split.num_documents, 'document')}, {counted(split.num_tokens, 'token')}"
        say(f"{document.prefixes[name]}: {counts}, {'uint16' if manifest.token_bytes == 2 else 'int32'}")
    say(f"end of text: {manifest.spec.end_of_text} (id {manifest.end_of_text_id})")


@data_app.command("import")
def import_data(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="PREFIX of PREFIX.bin and PREFIX.idx (Megatron-LM, GPT-NeoX), a .ds file (datatrove), or a folder of "
            "them.",
            metavar="PREFIX",
        ),
    ],
    output: Annotated[Path, typer.Option(help="Directory for the dataset; must not exist yet.", metavar="DIR")],
    tokenizer: Annotated[
        Path, typer.Option(help="The tokenizer.json that the files were written with.", metavar="FILE")
    ],
    end_of_text: Annotated[
        str, typer.Option(help="The tokenizer's token after each document.", metavar="TOKEN")
    ] = "<|endoftext|>",
    validation: Annotated[
        list[Path] | None, _option(help="Files for validation, named like PREFIX; repeatable.", metavar="PREFIX")
    ] = None,
    validation_fraction: Annotated[
        float | None,
        _option(
            help="Without --validation: the share of each file's documents with tokens, from its end, for validation "
            "(default: 0.01)."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a dataset of token files that another program wrote. On the same disk, they are linked, not copied.

    Example: growctl data import pile_text_document --tokenizer 20B_tokenizer.json --output pile
    """
    from growctl.data.exchange import import_tokens
    from growctl.text.documents import print_document
    from model.errors import UserError
    from stages.checkpoint.directory import check_new
    from stages.counted import counted

    if validation and validation_fraction is not None:
        raise UserError("--validation-fraction is for files without --validation; leave out one of the two")
    fraction = 0.01 if validation_fraction is None else validation_fraction
    if not 0.0 < fraction < 1.0:
        raise UserError(f"--validation-fraction {fraction} must be above 0 and below 1")
    check_new(output, "--output")
    with progress_bar("checking indices") as advance:
        document = import_tokens(
            sources,
            output,
            tokenizer,
            end_of_text=end_of_text,
            validation=validation or [],
            validation_fraction=fraction,
            on_progress=lambda what, done: advance(done or 0.0, what=what),
        )
    if as_json:
        print_document(document)
        return
    splits = document.manifest.splits
    for name, split in splits.items():
        say(
            f"{name}: {counted(split.num_documents, 'document')}, {counted(split.num_tokens, 'token')},"
            f" {counted(split.num_bytes, 'byte')}"
        )
    if document.linked_files:
        say(f"shares {counted(len(document.linked_files), 'file')} with the source: leave their content as it is")
    if num_unended := sum(split.num_unended_documents for split in splits.values()):
        say(f"{counted(num_unended, 'document')} without {end_of_text} at the end, left as they are")
    say(str(output))
