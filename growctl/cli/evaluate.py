"""The commands `eval` and `inspect`. Slow modules are imported on use."""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from growctl.cli.options import (
    CHECKPOINT_HELP,
    DEFAULT_RUNS_DIR,
    AsJson,
    CheckpointName,
    DeviceName,
    DtypeName,
    Result,
    RunsDir,
    TokenizerFile,
    TopKNorm,
    TopKTokens,
    complete_run,
    emit,
    top_tokens,
    unusable,
)
from growctl.text.escaping import say
from growctl.text.progress import progress_bar
from growctl.whole_file import replace_file

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
        int | None, typer.Option(help="With --split: this many windows, spread over it (default: all).", min=1)
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
        int | None, typer.Option(help="With --tasks: only the first N examples of each.", metavar="N", min=1)
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens per window (default: those of a training sequence).", min=1)
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            help="With --text: tokens from one window to the next (default: the context, without overlap).", min=1
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
            help=f"With --contexts: only the first N tokens (default: {LONG_TEXT_TOKENS:,}).", metavar="N", min=1
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Windows or requests at a time (default: 8; more of short windows).", min=1)
    ] = None,
    top_k_tokens: TopKTokens = None,
    top_k_norm: TopKNorm = None,
    tokenizer: TokenizerFile = None,
    device: DeviceName = "auto",
    dtype: DtypeName = "float32",
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Evaluate a checkpoint: its loss on text, at long contexts too, or its scores on benchmark tasks.

    --text and --split give loss, perplexity per token and per word, and bits per byte.

    Of images, --split gives the loss, and how often the right class is the likeliest (top1) or among five (top5).

    Example: growctl eval quickstart --text book.txt --stride 32

    Example: growctl eval quickstart --tasks lambada_openai,hellaswag,piqa,arc_easy,arc_challenge,winogrande

    Example: growctl eval my-run --text book.txt --contexts 1024,4096,16384 --rope-scaling yarn

    Example: growctl eval my-run --split validation --top-k-tokens 0.5,0.25,0.1
    """
    from growctl.evaluate.evaluation import Evaluator
    from growctl.evaluate.pretrained import open_pretrained
    from growctl.evaluate.record import record

    text = text or None
    split_given = split if text or tasks is not None else split or data
    what = _one_of({"--text": text, "--split": split_given, "--tasks": tasks})
    if text and contexts is not None:
        what = "--contexts"
    belongs_to: dict[str, dict[str, Any]] = {
        "--text": {"--stride": stride, "--contexts": None if text else contexts},
        "--split": {"--data": data, "--sequences": sequences},
        "--tasks": {"--include-path": include_path, "--limit": limit},
        "--contexts": {"--rope-scaling": rope_scaling, "--max-tokens": max_tokens},
        "--text, --split or --tasks": {"--batch-size": batch_size if what == "--contexts" else None},
        "--text or --split": {"--top-k-tokens": top_k_tokens if what in ("--contexts", "--tasks") else None},
    }
    for owner, options in belongs_to.items():
        for name, value in options.items():
            if value is not None and owner != what:
                raise unusable(f"{name} has no effect with {what}; it belongs to {owner}")
    tops = top_tokens(top_k_tokens, top_k_norm)
    names = [] if tasks is None else [name.strip() for name in tasks.split(",")]
    lengths = [] if contexts is None else _lengths(contexts)
    if text:
        from stages.evaluate.documents import text_files

        files = text_files(text)
    if names:
        if importlib.util.find_spec("lm_eval") is None:
            raise unusable("--tasks needs lm-evaluation-harness; install it with `pip install 'growctl[eval]'`")
        os.environ.setdefault("TQDM_DISABLE", "1")  # lm_eval's own bars would run into ours
        from stages.evaluate.tasks import find_tasks

        manager, names = find_tasks(names, include_path)  # before the model is loaded
    with (
        open_pretrained(checkpoint, runs_dir, tokenizer=tokenizer, device=device, dtype=dtype) as opened,
        progress_bar("evaluating") as on_progress,
    ):
        text_options = {"--text": text, "--tasks": tasks, "--context": context, "--tokenizer": tokenizer}
        opened.manifest.reject_options_of_text(text_options)
        evaluator = Evaluator(opened, tokenizer, context, batch_size, on_progress, tops)
        if what == "--contexts":
            document = evaluator.at_contexts(files, lengths, rope_scaling or "none", max_tokens or LONG_TEXT_TOKENS)
        elif names:
            document = evaluator.on_tasks(manager, names, limit, include_path)
        elif what == "--text":
            document = evaluator.on_text(files, stride)
        else:
            document = evaluator.on_split(split or "validation", data, sequences, runs_dir)
    recorded = record(document.checkpoint, document.scores, document.settings)
    document = replace(document, recorded_in=recorded.ledger)
    emit(Result(document, document.sections()), as_json)
    if recorded.ledger and not as_json:
        say(f"recorded in {recorded.ledger}; growctl report shows it")
    if recorded.why_not:
        say(f"not recorded in the ledger of the run: {recorded.why_not}", error=True)


def inspect(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            help=f"{CHECKPOINT_HELP} Several are measured on the same text.",
            metavar="CKPT",
            autocompletion=complete_run,
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
        Path | None, typer.Option(help="A new PNG file of what is measured, by depth or tokens read.", metavar="FILE")
    ] = None,
    top_k_tokens: TopKTokens = None,
    top_k_norm: TopKNorm = None,
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
    from growctl.evaluate.inspection import inspect_checkpoints, inspection_png
    from growctl.evaluate.pretrained import tell
    from growctl.find_checkpoint import dataset_of, find_checkpoint

    if text and data is not None:
        raise unusable(f"--text {text[0]} and --data {data}: give one of them")
    if picture is not None and (picture.exists() or not picture.absolute().parent.is_dir()):
        raise unusable(f"--picture {picture}: must be a new file in a folder that exists")
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
        tops=top_tokens(top_k_tokens, top_k_norm),
    )
    emit(Result(document, document.sections()), as_json)
    if picture is not None:
        replace_file(picture, inspection_png(document))


def _one_of(given: Mapping[str, object]) -> str:
    """The one option that has a value. Raises UserError if none or several have."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        wrong = f"{' and '.join(names)}: " if names else ""
        raise unusable(f"{wrong}give one of {', '.join(given)}, to evaluate on")
    return names[0]


def _lengths(value: str) -> list[int]:
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if not name.isdecimal() or int(name) == 0:
            raise unusable(f"--contexts {name!r}: a length is a whole number of tokens, 1 or more")
    return [int(name) for name in names]
