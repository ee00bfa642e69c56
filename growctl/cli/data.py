"""The commands `data show`, `data export` and `data import`. Slow modules are imported on use."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from growctl.cli.completion import complete_schedule
from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, Overrides, RunsDir
from growctl.text.escaping import say
from growctl.text.progress import progress_bar

if TYPE_CHECKING:
    from growctl.data.samples import SampleEntry
    from growctl.data.show import DataShowDocument

PAGE = "data.html"
"""The page in the directory of --output; the picture beside it has the chart's name."""

data_app = typer.Typer(
    name="data",
    help="Show, export and import prepared datasets.\n\nExample: growctl data show quickstart",
    no_args_is_help=True,
)
_option = partial(typer.Option, show_default=False)


@data_app.command()
def show(
    dataset: Annotated[
        str,
        typer.Argument(
            help="A dataset's directory, or a schedule whose dataset is prepared.",
            metavar="DIR|SCHEDULE",
            autocompletion=complete_schedule,
            show_default=False,
        ),
    ],
    overrides: Overrides = None,
    sample: Annotated[
        int | None,
        _option(
            help="Show instead the text of the sample that training reads at this index, counted from 0; with several "
            "contexts, of the window of the longest.",
            metavar="INDEX",
            min=0,
        ),
    ] = None,
    step: Annotated[
        int | None,
        _option(
            help="Show instead the samples of this optimizer step of the schedule, counted from 1 at the ladder's "
            "start.",
            metavar="N",
            min=1,
        ),
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Show the token ids of samples, too.")] = False,
    sequence_length: Annotated[
        int | None,
        _option(
            help="For a directory: tokens of a sequence, to count the documents that sequences cut, and for --sample.",
            metavar="TOKENS",
            min=1,
        ),
    ] = None,
    seed: Annotated[
        int | None, _option(help="For --sample of a directory: the seed of the order.", min=0, max=2**32 - 1)
    ] = None,
    count_ids: Annotated[
        bool | None,
        _option(
            "--count-ids/--no-count-ids",
            help="Read all tokens to count which ids occur (default: for datasets up to 20 GB).",
        ),
    ] = None,
    output: Annotated[
        Path | None, _option(help=f"Directory for a page, {PAGE}, and a picture of the lengths.", metavar="DIR")
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Print plain lines without colour and columns, for logs and screen readers."),
    ] = False,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Show what a prepared dataset holds: tokens, documents and their lengths, compression, ids, epochs of a schedule.

    With --sample or --step, show exactly what training reads there, cut where documents end. For a mixture, show its
    sources too; the samples of its directory follow its own weights, those of a schedule the weights of the stages.

    Example: growctl data show quickstart

    Example: growctl data show quickstart --sample 123456 --ids

    Example: growctl data show runs/.datasets/texts-396a28ec70bd --output texts-page
    """
    from growctl.data.show import describe
    from growctl.data.target import find_target
    from model.errors import UserError

    wants_samples = sample is not None or step is not None
    for is_wrong, message in (
        (plain and as_json, "--plain and --json: give one of them, because each is another form of the output"),
        (sample is not None and step is not None, "--sample and --step: give one of them"),
        (output is not None and wants_samples, "--output: the page shows no samples; leave out --sample or --step"),
        (output is not None and output.exists() and not output.is_dir(), f"--output {output}: is not a directory"),
        (ids and not wants_samples, "--ids: shows the ids of samples; give --sample or --step too"),
    ):
        if is_wrong:
            raise UserError(message)
    target = find_target(dataset, overrides or [], runs_dir)
    for name, key, value in (
        ("--sequence-length", "training.sequence_length", sequence_length),
        ("--seed", "seed", seed),
    ):
        if value is not None and target.schedule:
            raise UserError(f"{name} {value}: the schedule has it; override it with {key}={value}")
    if seed is not None and not wants_samples:
        raise UserError(f"--seed {seed}: is for --sample")
    samples = target.samples(sample, step, sequence_length, seed) if wants_samples else iter(())
    if wants_samples and not as_json:
        _print_samples(samples, with_ids=ids, plain=plain)
        if step is not None and target.caveat():
            say(f"\n{target.caveat()}", error=True)
        return
    with progress_bar("reading") as on_progress:
        document = describe(
            target, on_progress, count_ids=count_ids, samples=tuple(samples), sequence_length=sequence_length
        )
    _print(document, as_json=as_json, plain=plain)
    if output is not None:
        page = _write_page(document, output)
        if not as_json:
            say(f"\nPage: {page}")


def _print(document: "DataShowDocument", *, as_json: bool, plain: bool) -> None:
    from growctl.data.show import data_sections
    from growctl.text.console import Terminal
    from growctl.text.terminal import plain_lines, print_sections

    if as_json:
        _print_json(document)
    elif plain:
        for line in plain_lines(data_sections(document)):
            say(line)
    else:
        print_sections(data_sections(document, with_bars=True), Terminal())


def _print_json(document: object) -> None:
    from growctl.text.documents import print_document

    print_document(document)


def _print_samples(samples: "Iterable[SampleEntry]", *, with_ids: bool, plain: bool) -> None:
    """Prints samples one by one: their text as it is, what describes it faintly."""
    from rich.text import Text

    from growctl.data.samples import sample_lines
    from growctl.text.colours import FAINT
    from growctl.text.console import Terminal, Verbatim

    terminal = Terminal()
    for number, sample in enumerate(samples):
        if number:
            say("")
        for line, is_text in sample_lines(sample, with_ids):
            if plain:
                say(line)
            else:
                terminal.print(Verbatim(line) if is_text else Text(line, FAINT), soft_wrap=True)


def _write_page(document: "DataShowDocument", output: Path) -> Path:
    from growctl.data.show import data_sections, length_chart
    from growctl.report.drawing import figure_file
    from growctl.report.page import render_page
    from growctl.whole_file import replace_file

    output.mkdir(parents=True, exist_ok=True)
    chart = length_chart(document)
    replace_file(output / f"{chart.key}.png", figure_file(chart, "png"))
    replace_file(output / PAGE, render_page(f"Dataset {document.path.name}", data_sections(document)).encode())
    return output / PAGE


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
    from growctl.data.export import export_megatron
    from growctl.data.show import documents_ending
    from stages.checkpoint.directory import check_new
    from stages.counted import counted

    check_new(output, "--output")
    with progress_bar("checking the dataset") as advance:
        document = export_megatron(dataset, output, lambda what, done: advance(done or 0.0, what=what))
    if as_json:
        _print_json(document)
        return
    for split in document.splits.values():
        say(
            f"{split.prefix}: {counted(split.num_documents, 'document')}, {counted(split.num_tokens, 'token')},"
            f" {split.dtype}"
        )
    say(f"{documents_ending(document.splits.values())} in {document.end_of_text} ({document.end_of_text_id})")


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
    from growctl.data.importing import import_tokens
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
        _print_json(document)
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
