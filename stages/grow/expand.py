"""Expands or shrinks a `parameters` checkpoint; hard-links existing tensors and writes only new ones.

The parent's hashes are copied from its manifest, so expanding costs only as much as it adds. `read_parameter` checks a
hash whenever it reads a value, and `growctl verify --integrity` checks all of them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from model.config import TokenformerConfig, TransformerConfig, num_parameters, parameter_shapes
from model.depth import COPYING, Depth
from model.errors import UserError
from model.growth import added_parameters, draw_added
from model.policy import (
    GrowthPolicy,
    ffn_tokens_in_proportion,
    grow_config,
    is_published,
    one_if_equal,
    preserves,
    shrink_config,
    tokens_by_layer,
)
from model.transformer_growth import grow_transformer
from stages.checkpoint.directory import finish_directory, whole_directory
from stages.checkpoint.files import FileEntry, link_or_copy
from stages.checkpoint.lineage import GrowthRecord, Lineage, Making, extended, hash_of
from stages.checkpoint.manifest import (
    Manifest,
    history_of,
    manifest_hash,
    parameter_file,
    verify_checkpoint,
)
from stages.checkpoint.parameters import read_parameter, require_parameters, write_parameters
from stages.stage_dir import TOKENIZER_NAME


def expand(
    source: Path,
    output: Path,
    *,
    attention_tokens: int | Sequence[int] = 0,
    ffn_tokens: int | Sequence[int] | None = None,
    new_layers: int = 0,
    layer_tokens: tuple[int, int] | None = None,
    policy: GrowthPolicy | None = None,
    seed: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Writes `output`, the checkpoint `source` with one more generation of parameter tokens, and returns its manifest.

    Adds `attention_tokens` to each of Q, K, V and O, and `ffn_tokens` to each FFN (None: in the layer's own
    proportion). Both are one number for all layers, or one per layer. Adds `new_layers` with `layer_tokens` (attention,
    FFN) in each, by default as many as the layer before it has. `policy` decides how the new tokens start, what happens
    to tau and where the new layers go; by default the function does not change. Old values and moments are hard links
    to the old files. New moments are zeros, in groups whose step starts at 0. `seed` defaults to the checkpoint's.
    `on_progress(done, total)` counts new parameters.

    Raises CheckpointError if `source` is not a complete `parameters` checkpoint or `output` exists, and UserError if
    the growth itself is invalid. Partial output is deleted.
    """
    source, output, policy = Path(source), Path(output), policy or GrowthPolicy()
    parent = _parent(source)
    if ffn_tokens is None:
        ffn_tokens = ffn_tokens_in_proportion(parent.model, attention_tokens)
    model = grow_config(
        parent.model,
        attention_tokens=attention_tokens,
        ffn_tokens=ffn_tokens,
        new_layers=new_layers,
        layer_tokens=layer_tokens,
        policy=policy,
    )
    assert isinstance(parent.model, TokenformerConfig)
    seed = parent.seed if seed is None else seed
    total = len(added_parameters(parent.model, model))

    read = partial(_value, source, parent)

    def rms_of(name: str) -> float:
        recorded = parent.files[parameter_file(name)].rms
        assert recorded is not None, f"{source}: no RMS of {name}"  # `write_parameter` records it
        return recorded

    with whole_directory(output) as staging:
        files = _linked(source, staging, parent, set(parent.files))
        added = draw_added(parent.model, model, seed, policy, read, rms_of)
        files |= write_parameters(staging, added, on_progress and (lambda done: on_progress(done, total)))
        attention, ffn = (tokens_by_layer(tokens, parent.model.num_layers) for tokens in (attention_tokens, ffn_tokens))
        growth = GrowthRecord(
            attention_tokens=one_if_equal(attention),
            ffn_tokens=one_if_equal(ffn),
            new_layers=new_layers,
            new_layer_positions=[
                position for position, block_id in enumerate(model.block_ids) if block_id not in parent.model.block_ids
            ],
            policy=policy,
            preserves=preserves(
                policy,
                model.score_function,
                published=is_published(parent.model),
                adds_tokens=any((*attention, *ffn)),
                adds_layers=new_layers > 0,
            ),
            seed=seed,
        )
        group_steps = parent.group_steps if policy.moments == "keep" else {}
        no_effect = {"allow_jump"} if new_layers else {"allow_jump", "depth"}
        determined_by = {
            "policy": policy.model_dump(mode="json", exclude=no_effect),
            "model": hash_of(model.model_dump(mode="json")),
            "seed": seed,
        }
        return _finish(output, source, parent, "expand", model, files, group_steps, determined_by, growth)


def expand_transformer(
    source: Path,
    output: Path,
    model: TransformerConfig,
    *,
    depth: Depth = "append",
    copy_noise: float = 0.0,
    seed: int | None = None,
) -> Manifest:
    """Writes `output`, the Transformer checkpoint `source` grown to `model`, and returns its manifest.

    It attends within documents if `source` does, whatever `model` says. All parameters are new files, and the optimizer
    starts fresh. `depth` and `copy_noise` are those of `grow_transformer`. Raises the same errors as `expand`.
    """
    source, output = Path(source), Path(output)
    parent = _parent(source)
    if not isinstance(parent.model, TransformerConfig):
        raise UserError(f"{source} is a {parent.model.family}; only a transformer can grow to a transformer's sizes")
    seed = parent.seed if seed is None else seed
    model = model.model_copy(update={"document_end_id": parent.model.document_end_id})

    read = partial(_value, source, parent)
    grown = grow_transformer(parent.model, model, read, depth=depth, noise=copy_noise, seed=seed)
    new_layers = model.num_layers - parent.model.num_layers
    with whole_directory(output) as staging:
        files = _linked(source, staging, parent, {TOKENIZER_NAME})
        files |= write_parameters(staging, grown)
        growth = GrowthRecord(
            new_layers=new_layers,
            depth=depth if new_layers else None,
            copy_noise=copy_noise,
            preserves=not new_layers or depth not in COPYING,
            seed=seed,
        )
        determined_by = {
            "depth": growth.depth,
            "copy_noise": copy_noise,
            "model": hash_of(model.model_dump(mode="json")),
            "seed": seed,
        }
        return _finish(output, source, parent, "expand", model, files, {}, determined_by, growth)


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
        return _finish(
            output, source, parent, "shrink", model, files, group_steps, {"drop_generations": drop_generations}
        )


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
    model: TokenformerConfig | TransformerConfig,
    files: dict[str, FileEntry],
    group_steps: dict[str, int],
    determined_by: dict[str, Any],
    growth: GrowthRecord | None = None,
) -> Manifest:
    history = extended(history_of(parent), operation, determined_by, num_parameters=num_parameters(model))
    lineage = Lineage(operation=operation, parent=manifest_hash(source), growth=growth, history=history)
    update = {"model": model, "step": 0, "group_steps": group_steps, "files": files, "lineage": lineage}
    return finish_directory(output, parent.model_copy(update=update))
