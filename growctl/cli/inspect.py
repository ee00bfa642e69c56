"""The command `inspect`. Slow modules are imported on use."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from growctl.cli.completion import complete_checkpoint
from growctl.cli.options import CHECKPOINT_HELP, DEFAULT_RUNS_DIR, AsJson, DeviceName, RunsDir, TokenizerFile
from growctl.text.escaping import say
from growctl.text.progress import progress_bar


def inspect(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            help=f"{CHECKPOINT_HELP} Several are measured on the same text.",
            metavar="CKPT",
            autocompletion=complete_checkpoint,
        ),
    ],
    text: Annotated[
        list[Path] | None,
        typer.Option(
            help="A text file, a .jsonl file or a folder of them to measure on; repeatable (default: the validation "
            "split of the first checkpoint's dataset).",
            metavar="PATH",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A dataset whose validation split to measure on.", metavar="DIR", show_default=False),
    ] = None,
    sequences: Annotated[int, typer.Option(help="Maximum number of windows of text.", min=1)] = 64,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens per window (default: those of a training sequence).", min=1, show_default=False),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Windows per batch. Gradients are of the mean loss of a batch.", min=1)
    ] = 8,
    picture: Annotated[
        Path | None, typer.Option(help="A new PNG file of gradients and activations by depth.", metavar="FILE")
    ] = None,
    tokenizer: TokenizerFile = None,
    device: DeviceName = "auto",
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Look inside models on real text: gradients, activations, scores, and what each parameter token is used for.

    Several checkpoints are compared with each other.

    Example: growctl inspect quickstart --picture inspection.png

    Example: growctl inspect with-softmax with-gelu --text novel.txt
    """
    from growctl.cli.evaluate import write_new
    from growctl.cli.pretrained import open_pretrained
    from growctl.evaluate.settings import new_file
    from growctl.find_checkpoint import find_checkpoint
    from growctl.inspect.document import inspect_document
    from growctl.inspect.inspection import TextChoice, inspect_checkpoints
    from growctl.inspect.table import print_inspection
    from growctl.text.console import Terminal
    from growctl.text.documents import print_document
    from model.errors import UserError
    from stages.stage_dir import TOKENIZER_NAME

    if text and data is not None:
        raise UserError(f"--text {text[0]} and --data {data}: give one of them")
    new_file("--picture", picture)
    tell = partial(say, error=True)
    found = [(reference, find_checkpoint(reference, runs_dir, tell)) for reference in checkpoints]
    dataset = None if text else _dataset(found[0][1], data, runs_dir)
    if dataset is not None and tokenizer is None:
        tokenizer = dataset / TOKENIZER_NAME  # the one that made the tokens: a checkpoint need not have its own
    choice = TextChoice(text or (), dataset, sequences, context, batch_size)
    with progress_bar("reading") as on_progress:
        inspection = inspect_checkpoints(
            found,
            choice,
            lambda path: open_pretrained(str(path), runs_dir, tell, tokenizer=tokenizer, device=device),
            lambda name, done, total: on_progress(done, total, name),
        )
    if as_json:
        print_document(inspect_document(inspection))
    else:
        print_inspection(inspection, Terminal())
    if picture is not None:
        from growctl.inspect.plots import png

        write_new("--picture", picture, png(inspection))


def _dataset(checkpoint: Path, given: Path | None, runs_dir: Path) -> Path:
    """The dataset whose validation split is the text."""
    from growctl.find_checkpoint import dataset_of
    from model.errors import UserError
    from stages.data.dataset import DataError

    try:
        return dataset_of(checkpoint, given, runs_dir)
    except DataError:
        raise
    except UserError as error:
        raise UserError(f"{error}; or give a text with --text PATH") from error
