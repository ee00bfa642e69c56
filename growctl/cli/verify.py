"""The command `verify`. Slow modules are imported on use."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from growctl.cli.options import CHECKPOINT_HELP, DEFAULT_RUNS_DIR, AsJson, Result, RunsDir, complete_run, emit, unusable
from growctl.text.escaping import say

if TYPE_CHECKING:
    from growctl.runs.verify import CheckedFile


def verify(
    old: Annotated[
        str,
        typer.Argument(
            help=f"{CHECKPOINT_HELP} With --integrity, a path: also of a dataset, a ledger.db, or all runs.",
            metavar="OLD",
            autocompletion=complete_run,
        ),
    ],
    new: Annotated[
        str | None,
        typer.Argument(
            help="A checkpoint with the same vocabulary, for example one grown from OLD.",
            metavar="[NEW]",
            autocompletion=complete_run,
        ),
    ] = None,
    integrity: Annotated[
        bool, typer.Option("--integrity", help="Re-read all files of OLD (and NEW) and check their hashes.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="Dataset to verify on (default: the checkpoint's training dataset).", metavar="DIR"),
    ] = None,
    sequences: Annotated[int, typer.Option(help="Maximum number of validation sequences to run on.", min=1)] = 16,
    context: Annotated[
        int | None, typer.Option(help="Tokens per sequence (default: 256, or as many as there are).", min=1)
    ] = None,
    dtype: Annotated[
        Literal["float64", "float32"],
        typer.Option(help="Precision for both checkpoints; float32 takes half the memory."),
    ] = "float64",
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
    as_json: AsJson = False,
) -> None:
    """Compare two checkpoints as functions on real text: are they equal, and what do the new tokens do?

    Exit code 1 means that NEW was grown from OLD by a policy that preserves the function but computes something else,
    or that --integrity found damage. Files that were set aside earlier or never finished are listed, but do not fail.

    Example: growctl verify quickstart/115k quickstart/164k/initial

    Example: growctl verify --integrity runs
    """
    from growctl.find_checkpoint import dataset_of, find_checkpoint
    from growctl.run.resume import as_parameters
    from growctl.runs.verify import VerifyDocument, section
    from growctl.text.console import Terminal

    if new is None and not integrity:
        raise unusable("verify compares two checkpoints; give NEW too, or --integrity to check the files of one")
    checked = _integrity([Path(path) for path in (old, new) if path], as_json) if integrity else []
    damaged = any(target.whole is False for target in checked)
    comparison = None
    if new is not None and not damaged:
        from stages.grow.compare import compare  # imports torch

        tell = partial(say, error=True)
        first, second = (find_checkpoint(reference, runs_dir, tell) for reference in (old, new))
        dataset = dataset_of(first, data, runs_dir)
        with (
            as_parameters(first, runs_dir, tell) as a,
            as_parameters(second, runs_dir, tell) as b,
            Terminal(stderr=True).status("running both checkpoints on the same text"),
        ):
            comparison = compare(a, b, dataset, num_sequences=sequences, sequence_length=context, dtype=dtype)
        first_side, second_side = replace(comparison.old, path=first), replace(comparison.new, path=second)
        comparison = replace(comparison, old=first_side, new=second_side)
    document = VerifyDocument(tuple(checked) if integrity else None, comparison)
    failed = damaged or (comparison is not None and comparison.breaks_promise)
    emit(Result(document, [section(comparison)] if comparison else [], failed), as_json)


def _integrity(paths: list[Path], as_json: bool) -> list["CheckedFile"]:
    """Re-reads everything at `paths` and returns the results; prints each at once unless `as_json`."""
    from rich.progress import DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from growctl.runs.verify import check, find_targets
    from growctl.text.console import Terminal

    console = Terminal(stderr=True)
    columns = TextColumn("{task.description}", markup=False), DownloadColumn(), TransferSpeedColumn()
    targets = [target for path in paths for target in find_targets(path)]
    checked = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("")
        for number, target in enumerate(targets, 1):
            progress.update(task, description=f"reading {target.path.name} ({number} of {len(targets)})")
            checked.append(check(target, lambda num_bytes: progress.advance(task, num_bytes)))
            if not as_json:
                say(checked[-1].line())
    return checked
