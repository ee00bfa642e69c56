"""The command `eval`. Slow modules are imported on use."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, AsJson, CheckpointName, DtypeName, RunsDir, TokenizerFile
from growctl.cli.progress import progress_bar
from growctl.text.escaping import say

if TYPE_CHECKING:
    import torch
    from lm_eval.tasks import TaskManager
    from rich.console import Console

    from growctl.evaluate.settings import Windows
    from stages.checkpoint.pretrained import Pretrained
    from stages.data.corpus import SplitName
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
        outcome.settings.update(tokenizer_facts(opened, tokenizer), dtype=facts["dtype"])
    outcome.document.update(outcome.settings | facts | {"seconds": seconds})
    recorded = record(opened.directory, outcome.scores, outcome.settings)
    outcome.document["recorded_in"] = str(recorded.ledger) if recorded.ledger else None
    if as_json:
        print(json.dumps(outcome.document, indent=1))
    else:
        outcome.show(Terminal())
        if recorded.ledger:
            say(f"recorded in {recorded.ledger}; growctl report shows it")
    if recorded.why_not:
        say(f"not recorded in the ledger of the run: {recorded.why_not}", error=True)
    if outcome.output and output:
        everything = json.dumps(outcome.document | {"harness": outcome.output}, indent=1, default=str)
        write_new("--output", output, everything.encode())
    if outcome.png and picture:
        write_new("--picture", picture, outcome.png())


@dataclass(frozen=True)
class Outcome:
    """What an evaluation found."""

    document: dict[str, Any]
    """For scripts, as JSON values."""

    settings: dict[str, Any]
    """What the result depends on beside the checkpoint, as JSON values."""

    scores: list[dict[str, Any]]
    """The result as the fields of ledger entries."""

    show: "Callable[[Console], None]"
    """Prints it for people."""

    output: dict[str, Any] | None = None
    """All that lm-evaluation-harness reports."""

    png: Callable[[], bytes] | None = None
    """Draws the picture of --picture."""


@dataclass(frozen=True)
class Evaluation:
    """A checkpoint in memory, and how much of a text it reads at once."""

    opened: "Pretrained"
    replicas: "Replicas"
    context: int | None
    batch_size: int

    def on_text(self, files: list[Path], stride: int | None) -> Outcome:
        """The loss on files, in windows that are `stride` tokens apart."""
        from growctl.evaluate.tables import print_text, text_document, text_scores
        from stages.evaluate.text import text_loss

        cut = self._windows(stride)
        with progress_bar("reading text") as on_progress:
            found = text_loss(
                self.opened,
                self.replicas,
                files,
                context=cut.context,
                stride=cut.stride,
                batch_size=self.batch_size,
                on_progress=on_progress,
            )
        settings = {"context": cut.context, "stride": cut.stride, "text": [str(path.resolve()) for path in files]}
        return Outcome(text_document(found), settings, text_scores(found), partial(print_text, found))

    def on_split(self, split: "SplitName", data: Path | None, sequences: int | None, runs_dir: Path) -> Outcome:
        """The loss on a split of a dataset, in the trainer's windows."""
        from growctl.checkpoints.dataset import dataset_of
        from growctl.evaluate.tables import print_text, text_document, text_scores
        from stages.evaluate.text import dataset_loss

        dataset = dataset_of(self.opened.directory, data, runs_dir)
        context = self._windows(None).context
        with progress_bar("reading the dataset") as on_progress:
            found = dataset_loss(
                self.opened,
                self.replicas,
                dataset,
                split,
                context=context,
                max_sequences=sequences,
                batch_size=self.batch_size,
                on_progress=on_progress,
            )
        settings = {"context": context, "stride": context, "dataset": str(dataset.resolve()), "split": split}
        settings |= {"sequences": sequences}
        return Outcome(text_document(found), settings, text_scores(found), partial(print_text, found))

    def on_tasks(
        self, manager: "TaskManager", names: list[str], limit: int | None, include_path: Path | None
    ) -> Outcome:
        """The scores on tasks of lm-evaluation-harness, and on those in `include_path`."""
        from growctl.evaluate.tables import print_scores, scores_document
        from stages.evaluate.harness import GrowctlLM
        from stages.evaluate.tasks import run_tasks

        context = self._windows(None).context
        with progress_bar("running tasks") as on_progress:
            lm = GrowctlLM(
                self.opened, self.replicas, context=context, batch_size=self.batch_size, on_progress=on_progress
            )
            results = run_tasks(lm, manager, names, limit)
        document = scores_document(results)
        settings = {"context": context, "limit": limit, "lm_eval": results.lm_eval}
        settings |= {"trained_length": self.opened.text.context_length or context}
        settings |= {"include_path": str(include_path.resolve()) if include_path else None}
        return Outcome(document, settings, document["tasks"], partial(print_scores, results), results.document)

    def at_contexts(
        self,
        files: list[Path],
        contexts: list[int],
        rope_scaling: Literal["none", "linear", "ntk", "yarn"] | None,
        max_tokens: int,
    ) -> Outcome:
        """The loss on files in windows of each length, on the first device alone."""
        from growctl.evaluate.long_context import contexts_document, contexts_png, contexts_scores, print_contexts
        from stages.evaluate.long_context import context_losses

        trained_length = self._windows(None).context
        kind = None if rope_scaling == "none" else rope_scaling
        with progress_bar("reading windows") as on_progress:
            found = list(
                context_losses(
                    self.opened,
                    self.replicas.only_first(),
                    files,
                    contexts,
                    kind=kind,
                    trained_length=trained_length,
                    max_tokens=max_tokens,
                    on_progress=on_progress,
                )
            )
        settings = {"trained_length": trained_length, "text": [str(path.resolve()) for path in files]}
        settings |= {"rope_scaling": rope_scaling or "none", "max_tokens": max_tokens}
        show = partial(print_contexts, found, trained_length)
        png = partial(contexts_png, found, trained_length)
        return Outcome(contexts_document(found), settings, contexts_scores(found), show, png=png)

    def _windows(self, stride: int | None) -> "Windows":
        from growctl.evaluate.settings import windows_for

        return windows_for(self.opened.manifest, self.opened.directory, self.context, stride)


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
    from growctl.text.html import replace_file
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
