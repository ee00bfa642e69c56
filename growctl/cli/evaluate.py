"""The command `eval`. Slow modules are imported on use."""

import json
import os
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
    from stages.evaluate.tasks import TaskResults

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
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Tasks of lm-evaluation-harness, separated by commas: lambada_openai,arc_easy; * matches any text.",
            metavar="NAMES",
        ),
    ] = None,
    include_path: Annotated[
        Path | None, typer.Option(help="With --tasks: a folder of task YAML files of your own.", metavar="DIR")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(help="With --tasks: only the first N examples of each.", metavar="N", min=1, show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="With --tasks: a new file for all that the harness reports.", metavar="FILE")
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
    """Evaluate a checkpoint: its loss on text, or its scores on benchmark tasks.

    --text and --split give loss, perplexity per token and per word, and bits per byte.

    Example: growctl eval quickstart --text book.txt --stride 32

    Example: growctl eval quickstart --tasks lambada_openai,hellaswag,piqa,arc_easy,arc_challenge,winogrande
    """
    from growctl.evaluate.settings import new_file, require_harness, require_one, task_names, windows_for
    from growctl.evaluate.tables import print_scores, print_text, scores_document, text_document
    from growctl.text.console import Terminal
    from stages.evaluate.documents import text_files

    what = require_one([("--text", text), ("--split", split or data), ("--tasks", tasks)])
    files, names = text_files(text or []), task_names(tasks or "")
    if names:
        require_harness()
        new_file(output)
    with open_replicas(checkpoint, runs_dir, tokenizer, device, dtype) as (opened, replicas):
        cut = windows_for(opened.manifest, opened.directory, context, stride)
        facts: dict[str, Any] = {"context": cut.context} | ({} if names else {"stride": cut.stride})
        facts |= checkpoint_facts(opened, replicas)
        sizes = {"context": cut.context, "batch_size": batch_size}
        started = time.monotonic()
        if what == "--tasks":
            results = _on_tasks(opened, replicas, names, include_path, limit, sizes)
            facts["limit"] = limit
        elif what == "--text":
            from stages.evaluate.text import text_loss

            facts["text"] = [str(path) for path in text or []]
            with progress_bar("reading text") as on_progress:
                found = text_loss(opened, replicas, files, stride=cut.stride, on_progress=on_progress, **sizes)
        else:
            from growctl.checkpoints.dataset import dataset_of
            from stages.evaluate.text import dataset_loss

            dataset = dataset_of(opened.directory, data, runs_dir)
            split = split or "validation"
            facts |= {"dataset": str(dataset), "split": split}
            with progress_bar("reading the dataset") as on_progress:
                found = dataset_loss(
                    opened, replicas, dataset, split, max_sequences=sequences, on_progress=on_progress, **sizes
                )
        facts["seconds"] = round(time.monotonic() - started, 3)
    if what == "--tasks":
        document = scores_document(results) | facts
        if output:
            write_json(output, document | {"harness": results.document})
    else:
        document = text_document(found) | facts
    if as_json:
        print(json.dumps(document, indent=1))
    elif what == "--tasks":
        print_scores(results, Terminal())
    else:
        print_text(found, Terminal())


def _on_tasks(
    opened: "Pretrained",
    replicas: "Replicas",
    names: list[str],
    include_path: Path | None,
    limit: int | None,
    sizes: dict[str, int],
) -> "TaskResults":
    from stages.evaluate.harness import GrowctlLM
    from stages.evaluate.tasks import find_tasks, run_tasks

    manager, found = find_tasks(names, include_path)
    with progress_bar("running tasks") as on_progress:
        lm = GrowctlLM(opened, replicas, on_progress=on_progress, **sizes)
        return run_tasks(lm, manager, found, limit)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Writes `document` to the new file `path`, completely or not at all. What JSON cannot say becomes text."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(document, indent=1, default=str))
    os.replace(temporary, path)


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
