"""The command `inspect`. Slow modules are imported on use."""

from pathlib import Path
from typing import Annotated

import typer

from growctl.cli.completion import complete_checkpoint
from growctl.cli.options import CHECKPOINT_HELP, DEFAULT_RUNS_DIR, AsJson, DeviceName, RunsDir, TokenizerFile


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
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A dataset whose validation split to measure on.", metavar="DIR")
    ] = None,
    sequences: Annotated[int, typer.Option(help="Maximum number of windows of text.", min=1)] = 64,
    context: Annotated[
        int | None, typer.Option(help="Tokens per window (default: those of a training sequence).", min=1)
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
    """Look inside models on real text: gradients, activations, scores, and the use of parameter tokens.

    Several checkpoints are compared with each other.

    Example: growctl inspect quickstart --picture inspection.png

    Example: growctl inspect with-softmax with-gelu --text novel.txt
    """
    from growctl.cli.evaluate import check_new_file
    from growctl.evaluate.inspection import inspect_checkpoints
    from growctl.evaluate.pretrained import tell
    from growctl.find_checkpoint import dataset_of, find_checkpoint
    from growctl.text.terminal import print_result
    from model.errors import UserError

    if text and data is not None:
        raise UserError(f"--text {text[0]} and --data {data}: give one of them")
    check_new_file("--picture", picture)
    named = [(reference, find_checkpoint(reference, runs_dir, tell)) for reference in checkpoints]
    dataset = None if text else dataset_of(named[0][1], data, runs_dir)
    document = inspect_checkpoints(
        named,
        text or (),
        dataset,
        num_sequences=sequences,
        context=context,
        batch_size=batch_size,
        runs_dir=runs_dir,
        tokenizer=tokenizer,
        device=device,
    )
    print_result(document, document.sections(), as_json=as_json)
    if picture is not None:
        from growctl.evaluate.pictures import inspection_png
        from growctl.whole_file import replace_file

        replace_file(picture, inspection_png(document))
