"""The functions of `data export` and `data import` (growctl/cli/data.py). Slow modules are imported on use."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from growctl.cli.options import AsJson
from growctl.text.escaping import say
from growctl.text.progress import progress_bar


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
    from growctl.data.export import export_megatron
    from stages.checkpoint.directory import check_new

    check_new(output, "--output")
    with progress_bar("checking the dataset") as advance:
        document = export_megatron(dataset, output, lambda what, done: advance(done or 0.0, what=what))
    if as_json:
        from growctl.text.documents import print_document

        print_document(document)
        return
    from growctl.data_view.sections import documents_ending
    from stages.counted import counted

    for split in document.splits.values():
        say(
            f"{split.prefix}: {counted(split.num_documents, 'document')}, {counted(split.num_tokens, 'token')},"
            f" {split.dtype}"
        )
    say(f"{documents_ending(document.splits.values())} in {document.end_of_text} ({document.end_of_text_id})")


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
        list[Path] | None,
        typer.Option(help="Files for validation, named like PREFIX; repeatable.", metavar="PREFIX", show_default=False),
    ] = None,
    validation_fraction: Annotated[
        float | None,
        typer.Option(
            help="Without --validation: the share of each file's documents with tokens, from its end, for validation "
            "(default: 0.01).",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a dataset of token files that another program wrote. On the same disk, they are linked, not copied.

    Example: growctl data import pile_text_document --tokenizer 20B_tokenizer.json --output pile
    """
    from growctl.data.importing import import_tokens
    from model.errors import UserError
    from stages.checkpoint.directory import check_new

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
        from growctl.text.documents import print_document

        print_document(document)
        return
    from stages.counted import counted

    for name, split in document.manifest.splits.items():
        say(
            f"{name}: {counted(split.num_documents, 'document')}, {counted(split.num_tokens, 'token')},"
            f" {counted(split.num_bytes, 'byte')}"
        )
    if document.linked_files:
        say(f"shares {counted(len(document.linked_files), 'file')} with the source: leave their content as it is")
    if num_unended := sum(split.num_unended_documents for split in document.manifest.splits.values()):
        say(f"{counted(num_unended, 'document')} without {end_of_text} at the end, left as they are")
    say(str(output))
