"""The commands `data show`, `data export` and `data import`. Slow modules are imported on use."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from growctl.cli.completion import complete_schedule
from growctl.cli.data_exchange import export_data, import_data
from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, Overrides, RunsDir
from growctl.text.escaping import say
from growctl.text.progress import progress_bar

if TYPE_CHECKING:
    from growctl.data_view.document import DataShowDocument, SampleEntry

PAGE = "data.html"
"""The page in the directory of --output; the picture beside it has the chart's name."""

data_app = typer.Typer(
    name="data",
    help="Show, export and import prepared datasets.\n\nExample: growctl data show quickstart",
    no_args_is_help=True,
)


data_app.command("export")(export_data)
data_app.command("import")(import_data)


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
        typer.Option(
            help="Show instead the text of the sample that training reads at this index, counted from 0; with several "
            "contexts, of the window of the longest.",
            metavar="INDEX",
            min=0,
            show_default=False,
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            help="Show instead the samples of this optimizer step of the schedule, counted from 1 at the ladder's "
            "start.",
            metavar="N",
            min=1,
            show_default=False,
        ),
    ] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Show the token ids of samples, too.")] = False,
    sequence_length: Annotated[
        int | None,
        typer.Option(
            help="For a directory: tokens of a sequence, to count the documents that sequences cut, and for --sample.",
            metavar="TOKENS",
            min=1,
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="For --sample of a directory: the seed of the order.", min=0, max=2**32 - 1, show_default=False
        ),
    ] = None,
    count_ids: Annotated[
        bool | None,
        typer.Option(
            "--count-ids/--no-count-ids",
            help="Read all tokens to count which ids occur (default: for datasets up to 20 GB).",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help=f"Directory for a page, {PAGE}, and a picture of the lengths.", metavar="DIR", show_default=False
        ),
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
    from growctl.data_view.facts import describe
    from growctl.data_view.samples import SampleReader
    from growctl.data_view.target import find_target
    from model.errors import UserError

    if plain and as_json:
        raise UserError("--plain and --json: give one of them, because each is another form of the output")
    wants = {"--sample": sample is not None, "--step": step is not None}
    if all(wants.values()):
        raise UserError("--sample and --step: give one of them")
    if output is not None and any(wants.values()):
        raise UserError(f"--output and {'--sample' if sample is not None else '--step'}: the page shows no samples")
    if output is not None and output.exists() and not output.is_dir():
        raise UserError(f"--output {output}: is not a directory")
    if ids and not any(wants.values()):
        raise UserError("--ids: shows the ids of samples; give --sample or --step too")
    target = find_target(dataset, overrides or [], runs_dir)
    target.require_unknown(sequence_length, seed)
    if seed is not None and not any(wants.values()):
        raise UserError(f"--seed {seed}: is for --sample")
    samples: Iterable[SampleEntry] = ()
    if sample is not None or step is not None:
        of_step = None if sample is not None else target.samples_of_step(step or 0)
        windows, order_seed = target.order(sequence_length, seed)
        first, count, context = of_step or (sample or 0, 1, windows)
        order = (context, order_seed, target.packing, target.spans(), target.when_exhausted, windows)
        samples = SampleReader(target.directory, *order).read(first, count)
        if not as_json:
            _print_samples(samples, with_ids=ids, plain=plain)
            if step is not None and target.caveat():
                say(f"\n{target.caveat()}", error=True)
            return
    with progress_bar("reading") as on_progress:
        document = describe(
            target, on_progress, count_ids=count_ids, samples=tuple(samples), sequence_length=sequence_length
        )
    if as_json:
        from growctl.text.documents import print_document

        print_document(document)
    elif plain:
        from growctl.data_view.sections import data_sections
        from growctl.text.terminal import plain_lines

        for line in plain_lines(data_sections(document)):
            say(line)
    else:
        from growctl.data_view.sections import data_sections
        from growctl.text.console import Terminal
        from growctl.text.terminal import print_sections

        print_sections(data_sections(document, with_bars=True), Terminal())
    if output is not None:
        page = _write_page(document, output)
        if not as_json:
            say(f"\nPage: {page}")


def _print_samples(samples: "Iterable[SampleEntry]", *, with_ids: bool, plain: bool) -> None:
    """Prints samples one by one: their text as it is, what describes it faintly."""
    from rich.text import Text

    from growctl.data_view.samples import sample_lines
    from growctl.text.colours import FAINT
    from growctl.text.console import Terminal, Verbatim

    terminal = Terminal()
    for number, sample in enumerate(samples):
        if number:
            say("")
        for line, is_text in sample_lines(sample, with_ids):
            if plain or is_text:
                say(line) if plain else terminal.print(Verbatim(line), soft_wrap=True)
            else:
                terminal.print(Text(line, FAINT), soft_wrap=True)


def _write_page(document: "DataShowDocument", output: Path) -> Path:
    from growctl.data_view.sections import data_sections, length_chart
    from growctl.report.drawing import figure_file
    from growctl.report.page import render_page
    from growctl.whole_file import replace_file

    output.mkdir(parents=True, exist_ok=True)
    chart = length_chart(document)
    replace_file(output / f"{chart.key}.png", figure_file(chart, "png"))
    replace_file(output / PAGE, render_page(f"Dataset {document.path.name}", data_sections(document)).encode())
    return output / PAGE
