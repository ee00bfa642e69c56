"""The command `eval`. Slow modules are imported on use."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, CheckpointName, DtypeName, RunsDir, TokenizerFile
from growctl.text.escaping import say

if TYPE_CHECKING:
    import torch

    from stages.checkpoint.pretrained import Pretrained
    from stages.evaluate.replicas import Replicas

PER_STEP = 8
"""Windows or requests that a device computes at a time, by default."""


def evaluate(
    checkpoint: CheckpointName,
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", help="A text file, a .jsonl file or a folder of them; repeatable.", metavar="PATH"),
    ] = None,
    split: Annotated[
        Literal["validation", "train"] | None,
        typer.Option("--split", help="A split of the training dataset, in the windows that a stage evaluates on."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Dataset of --split (default: the checkpoint's training dataset).", metavar="DIR"),
    ] = None,
    sequences: Annotated[
        int | None,
        typer.Option(help="With --split: this many windows, spread over it (default: all).", min=1, show_default=False),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens per window (default: those of a training sequence).", min=1, show_default=False),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            help="With --text: tokens from one window to the next (default: the context, without overlap).",
            min=1,
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Windows or requests per device at a time.", min=1)] = PER_STEP,
    tokenizer: TokenizerFile = None,
    device: Annotated[
        str,
        typer.Option(help="Devices that share the work: cpu, cuda, cuda:0,cuda:1; auto: every GPU, or else the CPU."),
    ] = "auto",
    dtype: DtypeName = "float32",
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Evaluate a checkpoint on text: loss, perplexity per token and per word, bits per byte.

    Example: growctl eval quickstart --text book.txt --stride 32
    """
    from growctl.evaluate.settings import require_one, windows_for
    from growctl.evaluate.text_table import print_text, text_document
    from growctl.text.console import Terminal
    from stages.evaluate.documents import text_files

    what = require_one([("--text", text), ("--split", split or data)])
    files = text_files(text or [])
    with open_replicas(checkpoint, runs_dir, tokenizer, device, dtype) as (opened, replicas):
        cut = windows_for(opened.manifest, opened.directory, context, stride)
        facts: dict[str, Any] = {"context": cut.context, "stride": cut.stride}
        started = time.monotonic()
        if what == "--text":
            from stages.evaluate.text import text_loss

            facts["text"] = [str(path) for path in text or []]
            with progress_bar("reading text") as on_progress:
                found = text_loss(
                    opened,
                    replicas,
                    files,
                    context=cut.context,
                    stride=cut.stride,
                    batch_size=batch_size,
                    on_progress=on_progress,
                )
        else:
            from growctl.checkpoints.dataset import dataset_of
            from stages.evaluate.text import dataset_loss

            dataset = dataset_of(opened.directory, data, runs_dir)
            facts |= {"dataset": str(dataset), "split": split or "validation"}
            with progress_bar("reading the dataset") as on_progress:
                found = dataset_loss(
                    opened,
                    replicas,
                    dataset,
                    split or "validation",
                    context=cut.context,
                    max_sequences=sequences,
                    batch_size=batch_size,
                    on_progress=on_progress,
                )
        facts["seconds"] = round(time.monotonic() - started, 3)
        facts |= checkpoint_facts(opened, replicas)
    if as_json:
        print(json.dumps(text_document(found) | facts, indent=1))
    else:
        print_text(found, Terminal())


@contextmanager
def open_replicas(
    reference: str, runs_dir: Path, tokenizer: Path | None, device: str, dtype: Literal["float32", "bfloat16"]
) -> "Iterator[tuple[Pretrained, Replicas]]":
    """Yields the checkpoint that `reference` stands for, and its model on every device of `device`."""
    from growctl.cli.pretrained import open_pretrained

    devices = devices_of(device)
    tell = partial(say, error=True)
    with open_pretrained(reference, runs_dir, tell, tokenizer=tokenizer, device=str(devices[0]), dtype=dtype) as opened:
        from stages.evaluate.replicas import Replicas

        yield opened, Replicas(opened.model, devices)


def devices_of(names: str) -> "list[torch.device]":
    """The devices that `names` lists, separated by commas; for `auto` every GPU, or else the CPU."""
    import torch

    from growctl.cli.pretrained import torch_device

    if names == "auto" and torch.cuda.device_count() > 1:
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [torch_device(name.strip()) for name in names.split(",")]


def checkpoint_facts(opened: "Pretrained", replicas: "Replicas") -> dict[str, Any]:
    """What the results depend on beside the text, as JSON values."""
    from model.config import num_parameters
    from stages.engine.devices import device_name
    from stages.evaluate.replicas import device_of

    return {
        "checkpoint": str(opened.directory),
        "num_parameters": num_parameters(opened.manifest.model),
        "padding_rows": opened.manifest.model.vocab_size - opened.num_token_ids,
        "dtype": str(replicas.first.embedding.weight.dtype).removeprefix("torch."),
        "devices": [device_name(device_of(model)) for model in replicas.models],
    }


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float], None]]:
    """Shows a bar on standard error if it is a terminal. Yields a function that takes the fraction done."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from growctl.text.console import Terminal

    console = Terminal(stderr=True)
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda fraction: progress.update(task, completed=fraction)
