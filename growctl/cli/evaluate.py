"""The command `eval`. Slow modules are imported on use."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, CheckpointName, DtypeName, RunsDir, TokenizerFile
from growctl.text.escaping import say
from growctl.text.first_use import FirstUse

if TYPE_CHECKING:
    import torch
    from lm_eval.tasks import TaskManager

    from stages.checkpoint.pretrained import Pretrained
    from stages.evaluate.replicas import Replicas

PER_STEP = 8
"""Windows or requests that a device computes at a time, by default."""

LONG_TEXT_TOKENS = 262_144
"""Tokens to compare contexts on, by default: 16 windows of 16k."""


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
    contexts: Annotated[
        str | None,
        typer.Option(
            help="With --text: compare windows of these lengths, separated by commas: 1024,4096,16384.",
            metavar="LENGTHS",
        ),
    ] = None,
    rope_scaling: Annotated[
        Literal["none", "linear", "ntk", "yarn"] | None,
        typer.Option(help="With --contexts: how rotary frequencies change beyond the training length (default: none)."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help=f"With --contexts: only the first N tokens (default: {LONG_TEXT_TOKENS:,}).",
            metavar="N",
            min=1,
            show_default=False,
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="With --contexts: a new PNG file of the loss by position.", metavar="FILE")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help=f"Windows or requests per device at a time (default: {PER_STEP}).", min=1, show_default=False
        ),
    ] = None,
    tokenizer: TokenizerFile = None,
    device: Annotated[
        str,
        typer.Option(help="Devices that share the work: cpu, cuda, cuda:0,cuda:1; auto: every GPU, or else the CPU."),
    ] = "auto",
    dtype: DtypeName = "float32",
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Evaluate a checkpoint: its loss on text, at long contexts too, or its scores on benchmark tasks.

    --text and --split give loss, perplexity per token and per word, and bits per byte.

    Example: growctl eval quickstart --text book.txt --stride 32

    Example: growctl eval quickstart --tasks lambada_openai,hellaswag,piqa,arc_easy,arc_challenge,winogrande

    Example: growctl eval my-run --text book.txt --contexts 1024,4096,16384 --rope-scaling yarn --picture long.png
    """
    from growctl.evaluate.evaluation import Evaluation
    from growctl.evaluate.record import record
    from growctl.evaluate.settings import (
        context_lengths,
        listed,
        new_file,
        require_fitting,
        require_one,
        require_one_device,
    )
    from growctl.text.console import Terminal
    from growctl.text.documents import plain, print_document

    text = text or None
    split_given = split if text or tasks is not None else split or data
    what = require_one([("--text", text), ("--split", split_given), ("--tasks", tasks)])
    if text and contexts is not None:
        what = "--contexts"
        require_one_device(device, batch_size)
    options = {
        "--stride": (stride, "--text"),
        "--data": (data, "--split"),
        "--sequences": (sequences, "--split"),
        "--include-path": (include_path, "--tasks"),
        "--limit": (limit, "--tasks"),
        "--output": (output, "--tasks"),
        "--rope-scaling": (rope_scaling, "--contexts"),
        "--max-tokens": (max_tokens, "--contexts"),
        "--contexts": (None if text else contexts, "--text"),
        "--picture": (picture, "--contexts"),
    }
    require_fitting(what, options)
    new_file("--output", output)
    new_file("--picture", picture)
    names = [] if tasks is None else listed("--tasks", tasks)
    lengths = [] if contexts is None else context_lengths(contexts)
    files = _files(text or [])
    found_tasks = _tasks(names, include_path)
    with open_replicas(checkpoint, runs_dir, tokenizer, device, dtype) as (opened, replicas):
        evaluation = Evaluation(opened, replicas, context, batch_size or PER_STEP)
        started = time.monotonic()
        if what == "--contexts":
            outcome = evaluation.at_contexts(files, lengths, rope_scaling, max_tokens or LONG_TEXT_TOKENS)
        elif found_tasks:
            outcome = evaluation.on_tasks(*found_tasks, limit, include_path)
        elif what == "--text":
            outcome = evaluation.on_text(files, stride)
        else:
            outcome = evaluation.on_split(split or "validation", data, sequences, runs_dir)
        seconds = round(time.monotonic() - started, 3)
        facts = checkpoint_facts(opened, replicas)
        another = tokenizer_facts(opened, tokenizer)
    recorded = record(opened.directory, outcome.scores, outcome.settings | another | {"dtype": facts["dtype"]})
    facts |= {"tokenizer_sha256": another.get("tokenizer"), "wall_seconds": seconds, "recorded_in": recorded.ledger}
    document = outcome.kind(**outcome.figures, **outcome.settings, **facts)
    if as_json:
        print_document(document)
    else:
        outcome.show(Terminal())
        if recorded.ledger:
            say(f"recorded in {recorded.ledger}; growctl report shows it")
    if recorded.why_not:
        say(FirstUse().explained("not recorded in the ledger") + f" of the run: {recorded.why_not}", error=True)
    if outcome.output and output:
        everything = json.dumps(plain(document) | {"harness": outcome.output}, indent=1, default=str)
        write_new("--output", output, everything.encode())
    if outcome.png and picture:
        write_new("--picture", picture, outcome.png())


def _files(paths: list[Path]) -> list[Path]:
    if not paths:
        return []
    from stages.evaluate.documents import text_files

    return text_files(paths)


def _tasks(names: list[str], include_path: Path | None) -> "tuple[TaskManager, list[str]] | None":
    """The tasks called `names`, found before the model is loaded; None without names."""
    from growctl.evaluate.settings import require_harness

    if not names:
        return None
    require_harness()
    os.environ.setdefault("TQDM_DISABLE", "1")  # lm_eval's own bars would run into ours
    from stages.evaluate.tasks import find_tasks

    return find_tasks(names, include_path)


def write_new(option: str, path: Path, content: bytes) -> None:
    """Writes the new file `path` that `option` names, completely or not at all. Raises Failure if that fails."""
    from growctl.whole_file import replace_file
    from model.errors import Failure

    try:
        replace_file(path, content)
    except OSError as error:
        raise Failure(f"{option} {path} cannot be written ({error.strerror}); the results are above") from error


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


def tokenizer_facts(opened: "Pretrained", given: Path | None) -> dict[str, str]:
    """The sha256 of the tokenizer file `given`, if it is not the checkpoint's own: its figures are of another text."""
    from stages.checkpoint.files import hash_file

    digest = hash_file(given) if given else opened.manifest.tokenizer_sha256
    return {} if digest is None or digest == opened.manifest.tokenizer_sha256 else {"tokenizer": digest}


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
