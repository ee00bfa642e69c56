"""growctl's commands that make checkpoints or show one: expand, shrink, show. Slow modules are imported on use."""

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from growctl.cli.options import DEFAULT_RUNS_DIR, CheckpointName, Result, RunsDir, from_options, prints, unusable
from growctl.text.escaping import say

if TYPE_CHECKING:
    from growctl.ladder.sizes import Growth
    from model.shapes import ModelConfig
    from stages.checkpoint.lineage import Lineage

PARAMETER_BYTES = 4
"""Checkpoints hold float32."""

MOST_LAYERS = 1_000
_LAYERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")

_tell = partial(say, error=True)


@prints
def expand(
    checkpoint: CheckpointName,
    add_tokens: Annotated[
        int, typer.Option(help="Parameter tokens to add to each of Q, K, V and O, in every layer.", min=0)
    ] = 0,
    output: Annotated[
        Path | None,
        typer.Option(help="Directory for the larger checkpoint; must not exist yet (default: beside CKPT, as NAME+N)."),
    ] = None,
    add_ffn_tokens: Annotated[
        int | None,
        typer.Option(
            help="Parameter tokens, or units of a decoder, to add to each FFN (default: in a Tokenformer's own "
            "proportion, none to a decoder).",
            min=0,
        ),
    ] = None,
    add_heads: Annotated[
        int, typer.Option(help="Attention heads to add to every layer of a decoder, in whole groups.", min=0)
    ] = 0,
    widen: Annotated[
        int, typer.Option(help="Factor on the width of a decoder, before anything is added.", min=1, max=64)
    ] = 1,
    layers: Annotated[str | None, typer.Option(help="Layers to grow, for example 0,2,5-7 (default: all).")] = None,
    add_layers: Annotated[
        int, typer.Option(help="Layers to add. They start as the identity.", min=0, max=MOST_LAYERS)
    ] = 0,
    depth: Annotated[
        Literal["append", "interleave", "copy-stack", "copy-middle"] | None,
        typer.Option(
            help="Where new layers go: after the last (append), evenly between the others (interleave), or copies of "
            "all layers on top (copy-stack) or of the middle ones behind these (copy-middle), which need --allow-jump "
            "(default: append)."
        ),
    ] = None,
    layer_tokens: Annotated[
        int | None,
        typer.Option(help="Parameter tokens in each of Q, K, V and O of a new layer (default: as before it).", min=1),
    ] = None,
    layer_ffn_tokens: Annotated[
        int | None, typer.Option(help="Parameter tokens in the FFN of a new layer.", min=1)
    ] = None,
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
        float | None,
        typer.Option(
            help="Noise added to copies, in units of a new token's standard deviation; with --widen, relative to a "
            "matrix's root mean square.",
            min=0,
        ),
    ] = None,
    groups: Annotated[
        int | None, typer.Option(help="Groups that new tokens form, of which each data token reads --read.", min=2)
    ] = None,
    read: Annotated[int | None, typer.Option(help="Groups of new tokens that each data token reads.", min=1)] = None,
    moments: Annotated[
        Literal["keep", "reset"] | None, typer.Option(help="What to do with Adam's moments of the old parameters.")
    ] = None,
    allow_jump: Annotated[
        bool | None, typer.Option("--allow-jump", help="Allow a growth that changes the function.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed for the new values (default: the checkpoint's seed).", min=0)
    ] = None,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
) -> Result:
    """Add parameter tokens, FFN units, heads or layers to a checkpoint. By default this preserves the function.

    Old files are hard-linked, except for a decoder that is widened.

    Example: growctl expand quickstart --add-tokens 48 --output grown

    Example: growctl expand quickstart --add-layers 2 --depth interleave --output deeper

    Example: growctl expand llama --add-ffn-tokens 2048 --add-heads 4 --output larger
    """
    from growctl.find_checkpoint import find_checkpoint
    from growctl.ladder.sizes import Growth
    from growctl.run.resume import as_parameters
    from growctl.run.screen import added_words
    from growctl.runs.show import WrittenCheckpoint
    from growctl.text.progress import progress_bar
    from model.config_growth import grow_config
    from model.policy import GrowthPolicy
    from model.shapes import num_parameters
    from model.tokenformer_config import Routing
    from stages.checkpoint.disk_full import require_space
    from stages.checkpoint.manifest import read_manifest

    given: dict[str, object] = {"init": init, "tau": tau, "depth": depth, "copy_noise": copy_noise, "moments": moments}
    if (groups is None) != (read is None):
        raise unusable("--groups and --read: give both, or neither to let data tokens read all new tokens")
    given["routing"] = from_options(Routing, {"groups": groups, "read": read}) if groups else None
    policy = from_options(GrowthPolicy.of, {"preset": preset, **given, "allow_jump": allow_jump})
    source = find_checkpoint(checkpoint, runs_dir, _tell)
    model = read_manifest(source).model
    if model.family == "decoder" and (preset != "growctl-default" or init or tau or groups):
        raise unusable("--preset, --init, --tau and --groups are for a tokenformer; new parts of a decoder write zeros")
    if model.family == "decoder" and widen == 1 and copy_noise:
        raise unusable("--copy-noise: goes with --widen; a decoder has copies only then")
    if model.family == "decoder" and widen > 1 and moments == "keep":
        raise unusable("--moments keep: a widened decoder has no old moments; its optimizer starts fresh")
    if model.family == "decoder" and (layers, layer_tokens, layer_ffn_tokens) != (None, None, None):
        raise unusable("--layers, --layer-tokens and --layer-ffn-tokens: the layers of a decoder are alike")
    chosen = _layers(layers, model.num_layers)
    attention_tokens, ffn_tokens = _new_tokens(model, chosen, add_tokens, add_ffn_tokens)
    new_layer = (layer_tokens, layer_ffn_tokens) if layer_tokens is not None and layer_ffn_tokens is not None else None
    if (layer_tokens, layer_ffn_tokens) != (None, None) and not (new_layer and add_layers):
        raise unusable("--layer-tokens and --layer-ffn-tokens are the size of new layers; give both, with --add-layers")
    growth = Growth(attention_tokens, ffn_tokens, add_heads, add_layers, new_layer, widen)
    if growth.new_layers and not model.num_layers and growth.layer_tokens is None:
        raise unusable("--layer-tokens and --layer-ffn-tokens are missing: this model has no layer to take them from")
    if not growth.is_any:
        raise unusable("nothing to add; set --add-tokens, --add-ffn-tokens, --add-heads or --add-layers, or --widen")
    output = output or _beside(source, growth, add_tokens)
    _check_new(output)
    grown = grow_config(model, **growth._asdict(), policy=policy)
    linked = num_parameters(model) if growth.widen == 1 else 0
    require_space(output, PARAMETER_BYTES * (num_parameters(grown) - linked))
    from stages.grow.expand import expand as expand_checkpoint  # imports torch, after the quick checks

    settings = {**growth._asdict(), "policy": policy, "seed": seed}
    with (
        as_parameters(source, runs_dir, _tell, output) as parameters,
        progress_bar("writing new parameters") as on_progress,
    ):
        written = expand_checkpoint(parameters, output, **settings, on_progress=on_progress)
    assert written.lineage.growth
    what = "the function is unchanged" if written.lineage.growth.preserves else "the function has changed"
    line = f"{_sizes(output, written.lineage)} ({added_words(growth)}); {what}"
    return Result(WrittenCheckpoint.of(output, written), [line])


@prints
def shrink(
    checkpoint: CheckpointName,
    output: Annotated[Path, typer.Option(help="Directory for the smaller checkpoint; must not exist yet.")],
    drop_generations: Annotated[int, typer.Option(help="How many of the newest growths to remove.", min=1)] = 1,
    runs_dir: RunsDir = DEFAULT_RUNS_DIR,
) -> Result:
    """Remove the newest growths from a checkpoint: drop their tokens and layers, restore tau, keep all other files.

    Example: growctl shrink grown --drop-generations 1 --output as-before
    """
    from growctl.find_checkpoint import find_checkpoint
    from growctl.run.resume import as_parameters
    from growctl.runs.show import WrittenCheckpoint
    from stages.grow.expand import shrink as shrink_checkpoint

    source = find_checkpoint(checkpoint, runs_dir, _tell)
    _check_new(output)
    with as_parameters(source, runs_dir, _tell, output) as parameters:
        manifest = shrink_checkpoint(parameters, output, drop_generations=drop_generations)
    return Result(WrittenCheckpoint.of(output, manifest), [_sizes(output, manifest.lineage)])


@prints
def show(checkpoint: CheckpointName, runs_dir: RunsDir = DEFAULT_RUNS_DIR) -> Result:
    """Show where a checkpoint comes from: its lineage, its sizes by generation and its cost.

    Only reads manifests. `growctl verify --integrity` also reads the tensors.

    Example: growctl show quickstart
    """
    from growctl.find_checkpoint import find_checkpoint
    from growctl.runs.show import read_facts, section

    facts = read_facts(find_checkpoint(checkpoint, runs_dir, _tell))
    return Result(facts, [section(facts)])


def _new_tokens(
    model: "ModelConfig", layers: set[int], add_tokens: int, add_ffn_tokens: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that each layer's attention gains, and those that its FFN gains."""
    from model.config_growth import ffn_tokens_in_proportion

    if not model.num_layers and (add_tokens or add_ffn_tokens):
        raise unusable("the model has no layers that tokens could be added to; give --add-layers alone")

    def in_layers(number: int) -> tuple[int, ...]:
        return tuple(number if layer in layers else 0 for layer in range(model.num_layers))

    attention = in_layers(add_tokens)
    if add_ffn_tokens is None:
        return attention, ffn_tokens_in_proportion(model, attention)
    return attention, in_layers(add_ffn_tokens)


def _beside(source: Path, growth: "Growth", add_tokens: int) -> Path:
    """The directory for the growth of `source`, beside it. A stage never takes it for its own."""
    from stages.stage_dir import is_checkpoint_name

    path = source.resolve() if source.name in ("", "..") else source
    others = {
        "layers": growth.new_layers,
        "heads": growth.heads,
        "times-as-wide": growth.widen if growth.widen > 1 else 0,
    }
    added = [f"{number}-{what}" for what, number in others.items() if number]
    units = add_tokens or max(growth.ffn_tokens, default=0)
    name = "+".join([path.name, *([str(units)] if units or not added else []), *added])
    return path.with_name(f"from_{name}" if is_checkpoint_name(name) else name)


def _check_new(output: Path) -> None:
    """Raises UserError if `output` cannot be created, and removes what killed processes left beside it."""
    from stages.checkpoint.directory import check_new
    from stages.checkpoint.staging import remove_abandoned

    check_new(output, "--output")
    remove_abandoned(output.parent, _tell)


def _sizes(output: Path, lineage: "Lineage") -> str:
    from growctl.text.formatting import short_count

    before, after = (short_count(entry.num_parameters) for entry in lineage.history[-2:])
    return f"{output}: {before} -> {after} parameters"


def _layers(text: str | None, num_layers: int) -> set[int]:
    """The layer numbers in text like `0,2,5-7`. Raises UserError for other text, or a layer that the model lacks."""
    if text is None:
        return set(range(num_layers))
    chosen: set[int] = set()
    for part in text.split(","):
        match = _LAYERS.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < num_layers:
            raise unusable(f"--layers {text!r}: must be numbers and ranges below {num_layers}, such as 0,2,5-7")
        chosen |= set(range(first, last + 1))
    return chosen
