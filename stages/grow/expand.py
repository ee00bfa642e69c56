"""Expands or shrinks a `parameters` checkpoint; hard-links existing tensors and writes only new ones.

The parent's hashes are copied from its manifest, so expanding costs only as much as it adds. `read_parameter` checks a
hash whenever it reads a value, and `growctl verify --integrity` checks all of them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from model.config_growth import ffn_tokens_in_proportion, grow_config, one_if_equal, shrink_config, tokens_by_layer
from model.decoder_config import DecoderConfig
from model.decoder_growth import widened_decoder
from model.growth import draw_added, root_mean_square
from model.policy import GrowthPolicy, preserves
from model.shapes import ModelConfig, num_parameters, parameter_shapes
from model.tokenformer_config import PATTENTIONS
from model.widening import widened
from stages.checkpoint.directory import finish_directory, whole_directory
from stages.checkpoint.files import FileEntry, link_or_copy
from stages.checkpoint.lineage import GrowthRecord, Lineage, Making, extended, hash_of
from stages.checkpoint.manifest import Manifest, history_of, manifest_hash, parameter_file, verify_checkpoint
from stages.checkpoint.parameters import read_parameter, require_parameters, write_parameters
from stages.stage_dir import TOKENIZER_NAME

_BIASES: Any = {"blocks": {"__all__": {name: {"generations": {"__all__": {"biases"}}} for name in PATTENTIONS}}}
"""No part of a growth's history: training found them, and they differ from seed to seed."""


def expand(
    source: Path,
    output: Path,
    *,
    attention_tokens: int | Sequence[int] = 0,
    ffn_tokens: int | Sequence[int] | None = None,
    heads: int = 0,
    new_layers: int = 0,
    layer_tokens: tuple[int, int] | None = None,
    widen: int = 1,
    policy: GrowthPolicy | None = None,
    seed: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Writes `output`, the checkpoint `source` with one more generation of parameters, and returns its manifest.

    What is added is as in `grow_config`; FFN tokens of a Tokenformer default to each layer's own proportion. `policy`
    decides how new tokens start, what happens to tau and where new layers go; by default the function does not change.
    Old values and moments are hard links to the old files. New moments are zeros, in groups whose step starts at 0. A
    decoder that is widened gets new files, and its optimizer starts fresh. `seed` defaults to the checkpoint's.
    `on_progress(done, total)` counts written parameters.

    Raises CheckpointError if `source` is not a complete `parameters` checkpoint or `output` exists, and UserError if
    the growth itself is invalid. Partial output is deleted.
    """
    source, output, policy = Path(source), Path(output), policy or GrowthPolicy()
    parent = _parent(source)
    if ffn_tokens is None:
        ffn_tokens = ffn_tokens_in_proportion(parent.model, attention_tokens) or 0
    added: dict[str, Any] = {"attention_tokens": attention_tokens, "ffn_tokens": ffn_tokens, "heads": heads}
    added |= {"new_layers": new_layers, "layer_tokens": layer_tokens, "widen": widen}
    model = grow_config(parent.model, **added, policy=policy)
    seed = parent.seed if seed is None else seed
    old, value = parent.model, partial(_value, source, parent)
    is_widened = isinstance(old, DecoderConfig) and widen != 1
    if isinstance(old, DecoderConfig) and is_widened:
        narrow, old = old, widened_decoder(old, widen)

    def read(name: str) -> Tensor:
        if is_widened:
            return widened(name, value(name), narrow, widen, policy.copy_noise, seed)
        return value(name)

    def rms_of(name: str) -> float:
        if is_widened:
            return root_mean_square(read(name))
        recorded = parent.files[parameter_file(name)].rms
        assert recorded is not None, f"{source}: no RMS of {name}"  # `write_parameter` records it
        return recorded

    drawn = draw_added(old, model, seed, policy, read, rms_of)
    wide = ((name, read(name)) for name in parameter_shapes(old)) if is_widened else ()
    total = len(parameter_shapes(model)) - (0 if is_widened else len(parameter_shapes(old)))
    with whole_directory(output) as staging:
        files = _linked(source, staging, parent, {TOKENIZER_NAME} if is_widened else {*parent.files})
        files |= write_parameters(staging, chain(wide, drawn), on_progress and (lambda done: on_progress(done, total)))
        attention, ffn = (tokens_by_layer(tokens or 0, old.num_layers) for tokens in (attention_tokens, ffn_tokens))
        is_decoder, own = isinstance(old, DecoderConfig), dict[str, Any](policy=policy)
        if is_decoder:
            own = {"depth": policy.depth if new_layers else None}
            own["copy_noise"] = policy.copy_noise if is_widened else 0.0
            own["moments"] = "reset" if is_widened else policy.moments
        growth = GrowthRecord(
            attention_tokens=one_if_equal(attention),
            ffn_tokens=one_if_equal(ffn),
            heads=heads,
            new_layers=new_layers,
            new_layer_positions=[n for n, block_id in enumerate(model.block_ids) if block_id not in old.block_ids],
            widen=widen,
            **own,
            preserves=preserves(parent.model, policy, adds_tokens=any((*attention, *ffn)), adds_layers=new_layers > 0),
            seed=seed,
        )
        no_effect = {"allow_jump"} if new_layers else {"allow_jump", "depth"}
        how = own if is_decoder else {"policy": policy.model_dump(mode="json", exclude=no_effect)}
        determined_by = how | {"model": hash_of(model.model_dump(mode="json", exclude=_BIASES)), "seed": seed}
        group_steps = parent.group_steps if policy.moments == "keep" and not is_widened else {}
        return _finish(output, source, parent, "expand", model, files, group_steps, determined_by, growth)


def shrink(source: Path, output: Path, *, drop_generations: int = 1) -> Manifest:
    """Writes `output`, the checkpoint `source` without its newest generations, and returns its manifest.

    tau returns to its value before those generations, and the remaining files are hard links. Right after `expand` this
    restores the expanded model bit for bit, and its optimizer too unless moments were reset. Raises the same errors as
    `expand`.
    """
    source, output = Path(source), Path(output)
    parent = _parent(source)
    model = shrink_config(parent.model, drop_generations)
    kept = {parameter_file(name) for name in parameter_shapes(model)}
    dropped = range(model.newest_generation + 1, model.newest_generation + 1 + drop_generations)
    gone = tuple(f"generation-{number}-" for number in dropped)
    with whole_directory(output) as staging:
        files = _linked(source, staging, parent, kept | {TOKENIZER_NAME})
        group_steps = {name: step for name, step in parent.group_steps.items() if not name.startswith(gone)}
        how = {"drop_generations": drop_generations}
        return _finish(output, source, parent, "shrink", model, files, group_steps, how)


def _linked(source: Path, staging: Path, parent: Manifest, names: set[str]) -> dict[str, FileEntry]:
    """Links those files of the parent that are in `names` into `staging`. Returns their manifest entries."""
    files = {name: entry for name, entry in parent.files.items() if name in names}
    for name in files:
        link_or_copy(source / name, staging / name)
    return files


def _value(source: Path, manifest: Manifest, name: str) -> Tensor:
    """A parameter's value, without its moments."""
    return read_parameter(source, manifest, name, moments=False).fp32


def _parent(source: Path) -> Manifest:
    return require_parameters(source, verify_checkpoint(source, hashes=False))


def _finish(
    output: Path,
    source: Path,
    parent: Manifest,
    operation: Making,
    model: ModelConfig,
    files: dict[str, FileEntry],
    group_steps: dict[str, int],
    determined_by: dict[str, Any],
    growth: GrowthRecord | None = None,
) -> Manifest:
    history = extended(history_of(parent), operation, determined_by, num_parameters=num_parameters(model))
    lineage = Lineage(operation=operation, parent=manifest_hash(source), growth=growth, history=history)
    update = {"model": model, "step": 0, "group_steps": group_steps, "files": files, "lineage": lineage}
    return finish_directory(output, parent.model_copy(update=update))
