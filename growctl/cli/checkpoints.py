"""growctl's commands on checkpoints: expand, shrink, verify. Slow modules are imported on use."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from growctl.cli.options import AsJson, default_runs_dir
from growctl.text.escaping import say

if TYPE_CHECKING:
    from growctl.verify.integrity import Found
    from model.config import ModelConfig
    from model.policy import GrowthPolicy
    from stages.checkpoint.lineage import Lineage
    from stages.grow.compare import Comparison

MOST_TOKENS = 10_000_000
_LAYERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")

Checkpoint = Annotated[Path, typer.Argument(help="A final/, initial/ or expanded checkpoint directory.")]
Data = Annotated[
    Path | None,
    typer.Option(help="Dataset to verify on (default: the checkpoint's training dataset).", metavar="DIR"),
]


def expand(
    checkpoint: Checkpoint,
    add_tokens: Annotated[
        int,
        typer.Option(help="Parameter tokens to add to each of Q, K, V and O, in every layer.", min=0, max=MOST_TOKENS),
    ],
    output: Annotated[Path, typer.Option(help="Directory for the larger checkpoint; must not exist yet.")],
    add_ffn_tokens: Annotated[
        int | None,
        typer.Option(
            help="Parameter tokens to add to each FFN (default: in the model's own proportion).", min=0, max=MOST_TOKENS
        ),
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Layers to grow, for example 0,2,5-7 (default: all).")] = None,
    preset: Annotated[
        Literal["growctl-default", "official", "paper-appendix"],
        typer.Option(help="Named policy. It sets every growth option that you leave out."),
    ] = "growctl-default",
    init: Annotated[
        Literal["random", "matched", "zero-key", "zero-value", "copy"] | None,
        typer.Option(help="How new tokens are initialised."),
    ] = None,
    tau: Annotated[
        Literal["ramp", "anneal", "frozen", "recompute", "per-generation"] | None,
        typer.Option(
            help="Scale of the scores: new keys act as zero (ramp), unchanged (frozen, anneal), sqrt(n) at once "
            "(recompute), or a separate scale for each generation (per-generation)."
        ),
    ] = None,
    copy_noise: Annotated[
        float | None, typer.Option(help="Noise added to copies, in units of a new token's standard deviation.", min=0)
    ] = None,
    moments: Annotated[
        Literal["keep", "reset"] | None, typer.Option(help="What to do with Adam's moments of the old parameters.")
    ] = None,
    allow_jump: Annotated[
        bool | None, typer.Option("--allow-jump", help="Allow a growth that changes the function.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed for the new values (default: the checkpoint's seed).", min=0)
    ] = None,
    check: Annotated[
        bool, typer.Option("--verify", help="Compare the result with the source, as `growctl verify` does.")
    ] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Add parameter tokens to a checkpoint. By default this preserves the function and hard-links the old files.

    Example: growctl expand runs/quickstart/stages/2-262k/final --add-tokens 48 --output grown
    """
    from growctl.text.console import Terminal
    from growctl.verify.table import comparison_document, print_comparison
    from model.errors import UserError
    from stages.checkpoint.manifest import read_manifest

    policy = _policy(preset, init=init, tau=tau, copy_noise=copy_noise, moments=moments, allow_jump=allow_jump)
    model = read_manifest(checkpoint).model
    if data and not check:
        raise UserError("--data is the dataset for --verify; give both, or neither")
    dataset = _dataset(data, checkpoint) if check else None
    attention_tokens, ffn_tokens = _new_tokens(model, _layers(layers, model.num_layers), add_tokens, add_ffn_tokens)
    lineage = _expanded(
        checkpoint, output, attention_tokens=attention_tokens, ffn_tokens=ffn_tokens, policy=policy, seed=seed
    )
    comparison = _comparison(checkpoint, output, dataset) if dataset else None
    if as_json:
        document = _document(output, lineage)
        if dataset and comparison:
            document["verify"] = comparison_document(checkpoint, output, dataset, comparison)
        print(json.dumps(document, indent=1))
    else:
        _say_expanded(output, lineage, attention_tokens, ffn_tokens)
        if dataset and comparison:
            print()
            print_comparison(checkpoint, output, dataset, comparison, Terminal())
    if comparison and comparison.breaks_promise:
        raise typer.Exit(1)


def shrink(
    checkpoint: Checkpoint,
    output: Annotated[Path, typer.Option(help="Directory for the smaller checkpoint; must not exist yet.")],
    drop_generations: Annotated[int, typer.Option(help="How many of the newest growths to remove.", min=1)] = 1,
    as_json: AsJson = False,
) -> None:
    """Remove the newest growths from a checkpoint: drop their tokens, restore tau, keep all other files.

    Example: growctl shrink grown --drop-generations 1 --output as-before
    """
    from stages.grow.expand import shrink as shrink_checkpoint

    manifest = shrink_checkpoint(checkpoint, output, drop_generations=drop_generations)
    if as_json:
        print(json.dumps(_document(output, manifest.lineage), indent=1))
    else:
        say(_sizes(output, manifest.lineage))


def verify(
    old: Annotated[
        Path,
        typer.Argument(
            help="A final/, initial/ or expanded checkpoint directory; with --integrity also a step_*, a dataset, "
            "a ledger.db, a run, or the whole directory of runs.",
            metavar="OLD",
        ),
    ],
    new: Annotated[
        Path | None,
        typer.Argument(help="A checkpoint with the same vocabulary, for example one grown from OLD.", metavar="[NEW]"),
    ] = None,
    integrity: Annotated[
        bool, typer.Option("--integrity", help="Re-read all files of OLD (and NEW) and check their hashes.")
    ] = False,
    data: Data = None,
    sequences: Annotated[int, typer.Option(help="Maximum number of validation sequences to run on.", min=1)] = 16,
    length: Annotated[
        int | None,
        typer.Option(help="Tokens per sequence (default: 256, or as many as there are).", min=1, show_default=False),
    ] = None,
    dtype: Annotated[
        Literal["float64", "float32"],
        typer.Option(help="Precision for both checkpoints; float32 takes half the memory."),
    ] = "float64",
    as_json: AsJson = False,
) -> None:
    """Compare two checkpoints as functions on real text: are they equal, and what do the new tokens do?

    Exit code 1 means that NEW was grown from OLD by a policy that preserves the function but computes something else,
    or that --integrity found damage. Files that were set aside earlier or never finished are listed, but do not fail.

    Example: growctl verify runs/quickstart/stages/0-115k/final runs/quickstart/stages/1-164k/initial

    Example: growctl verify --integrity runs
    """
    from growctl.text.console import Terminal
    from growctl.verify.table import comparison_document, print_comparison
    from model.errors import UserError

    if new is None and not integrity:
        raise UserError("verify compares two checkpoints; give NEW too, or --integrity to check the files of one")
    document: dict[str, Any] = {}
    broken, comparison = False, None
    if integrity:
        found = _integrity([path for path in (old, new) if path], as_json)
        document["integrity"] = [entry.document() for entry in found]
        broken = any(entry.whole is False for entry in found)
    if new is not None and not broken:
        dataset = _dataset(data, old)
        comparison = _comparison(old, new, dataset, num_sequences=sequences, sequence_length=length, dtype=dtype)
        document |= comparison_document(old, new, dataset, comparison)
        if not as_json:
            print_comparison(old, new, dataset, comparison, Terminal())
    if as_json:
        print(json.dumps(document, indent=1))
    if broken or (comparison and comparison.breaks_promise):
        raise typer.Exit(1)


def _new_tokens(
    model: "ModelConfig", layers: set[int], add_tokens: int, add_ffn_tokens: int | None
) -> tuple[list[int], tuple[int, ...]]:
    """The tokens that each layer's attention gains, and those that its FFN gains."""
    from stages.grow.expand import ffn_tokens_in_proportion

    attention_tokens = [add_tokens if layer in layers else 0 for layer in range(model.num_layers)]
    if add_ffn_tokens is None:
        return attention_tokens, ffn_tokens_in_proportion(model, attention_tokens)
    return attention_tokens, tuple(add_ffn_tokens if layer in layers else 0 for layer in range(model.num_layers))


def _expanded(checkpoint: Path, output: Path, **growth: Any) -> "Lineage":
    """Writes the expanded checkpoint to `output`, with a progress bar on a terminal. Returns its lineage."""
    from rich.progress import Progress

    from growctl.text.console import Terminal
    from stages.grow.expand import expand as expand_checkpoint

    console = Terminal(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("writing new tokens", total=None)
        manifest = expand_checkpoint(
            checkpoint,
            output,
            **growth,
            on_progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    return manifest.lineage


def _say_expanded(output: Path, lineage: "Lineage", attention_tokens: Sequence[int], ffn_tokens: Sequence[int]) -> None:
    from growctl.run.screen import added_words

    what = "the function is unchanged" if lineage.details["preserves"] else "the function has changed"
    say(f"{_sizes(output, lineage)} ({added_words(attention_tokens, ffn_tokens)}); {what}")


def _integrity(paths: list[Path], as_json: bool) -> list["Found"]:
    """Re-reads everything at `paths` and returns what it found; prints each finding at once unless `as_json`."""
    from rich.progress import DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from growctl.text.console import Terminal
    from growctl.verify.integrity import check, find_targets

    console = Terminal(stderr=True)
    columns = TextColumn("{task.description}", markup=False), DownloadColumn(), TransferSpeedColumn()
    targets = [target for path in paths for target in find_targets(path)]
    found = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("")
        for number, target in enumerate(targets, 1):
            progress.update(task, description=f"reading {target.path.name} ({number} of {len(targets)})")
            found.append(check(target, lambda num_bytes: progress.advance(task, num_bytes)))
            if not as_json:
                say(found[-1].line())
    return found


def _comparison(old: Path, new: Path, dataset: Path, **settings: Any) -> "Comparison":
    from growctl.text.console import Terminal
    from stages.grow.compare import compare

    with Terminal(stderr=True).status("running both checkpoints on the same text"):
        return compare(old, new, dataset, **settings)


def _dataset(given: Path | None, checkpoint: Path) -> Path:
    """The dataset `given`, or else the checkpoint's training dataset, found above the checkpoint or in ./runs.

    Raises UserError if there is none, or if `given` cannot be read with the checkpoint's vocabulary.
    """
    from growctl.runs_dir import RunsPaths
    from model.errors import UserError
    from stages.checkpoint.manifest import read_manifest
    from stages.data.dataset import DataError, verify_dataset

    manifest = read_manifest(checkpoint)
    if given is not None:
        from stages.grow.compare import require_readable

        require_readable(given, checkpoint, manifest)
        return given
    fingerprint = manifest.dataset_fingerprint
    here = RunsPaths(default_runs_dir())
    above = [RunsPaths(folder) for folder in checkpoint.resolve().parents]
    for dataset in (path.parent for runs in (*above, here) for path in runs.dataset_manifests()):
        try:
            if verify_dataset(dataset, hashes=False).fingerprint == fingerprint:
                return dataset
        except DataError:
            continue
    sought = f"with the fingerprint {fingerprint[:12]}... of {checkpoint}" if fingerprint else f"named by {checkpoint}"
    raise UserError(
        f"there is no dataset {sought}, neither in a {here.datasets.name} above it nor in {here.datasets}; give one "
        "with --data DIR (`growctl prepare SCHEDULE` prepares it and prints its path)"
    )


def _policy(preset: Any, **given: Any) -> "GrowthPolicy":
    """The preset's policy, changed by the options `given`. Raises UserError for a combination that makes no sense."""
    from pydantic import ValidationError

    from model.errors import UserError
    from model.policy import GrowthPolicy

    try:
        return GrowthPolicy.of(preset, **{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        [problem, *_] = error.errors()
        option = "".join(f"--{name} {given[str(name)]}: ".replace("_", "-") for name in problem["loc"])
        finite = "must be a finite number" if problem["type"] == "finite_number" else problem["msg"]
        raise UserError(option + finite.removeprefix("Value error, ")) from None


def _sizes(output: Path, lineage: "Lineage") -> str:
    from growctl.text.formatting import short_count

    before, after = (short_count(lineage.details[key]) for key in ("num_parameters_before", "num_parameters"))
    return f"{output}: {before} -> {after} parameters"


def _document(output: Path, lineage: "Lineage") -> dict[str, Any]:
    return {"path": str(output), "parent": lineage.parent, **lineage.details}


def _layers(text: str | None, num_layers: int) -> set[int]:
    """The layer numbers in text like `0,2,5-7`. Raises UserError for other text, or a layer that the model lacks."""
    from model.errors import UserError

    if text is None:
        return set(range(num_layers))
    chosen: set[int] = set()
    missing = []
    for part in text.split(","):
        match = _LAYERS.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise UserError(f"--layers {text!r}: must be numbers and ascending ranges, such as 0,2,5-7")
        if last >= num_layers:
            missing.append(part.strip())
        else:
            chosen |= set(range(first, last + 1))
    if missing:
        there_are = f"layers 0 to {num_layers - 1}" if num_layers > 1 else "only layer 0"
        raise UserError(f"--layers {text!r}: the model has {there_are}, not {', '.join(missing)}")
    return chosen
