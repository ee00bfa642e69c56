"""Rewrites an engine checkpoint parameter by parameter for other ranks or another ZeRO stage.

A process of its own, which ends with the runner that starts it:

    python -m stages.engine.convert STEP_DIRECTORY TARGET

DeepSpeed's converter to its universal format splits the shards into parameters. The rest of that format is not used:
it needs three copies on the disk, and loading it silently loses groups (docs/architecture.md, decision 3).
"""

import math
import pkgutil
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.config import parameter_shapes
from model.errors import Failure, UserError
from model.growth import ParameterState
from model.parameter_names import group_kind, has_muon
from stages.checkpoint.directory import finish_directory, whole_directory
from stages.checkpoint.disk_full import require_space
from stages.checkpoint.manifest import CheckpointError, Manifest, manifest_hash, read_manifest
from stages.checkpoint.parameters import MOMENTS, write_parameters
from stages.checkpoint.pickles import DEEPSPEED_GLOBALS, check_pickles, list_pickles
from stages.engine.deepspeed_api import DeepSpeedCheckpoint, ds_to_universal
from stages.engine.engine_state import ENGINE_TAG
from stages.engine.moments import MOMENTUM
from stages.process.lifeline import end_with_runner

CONVERSION_SIZES = 1.5
"""Sizes of an engine checkpoint that its conversion takes for a while: the ranks' parts go as the new files come."""

Part = tuple[str, str, Tensor]
"""Parameter, key and values of what one rank has of them."""


def convert(source: Path, target: Path) -> Manifest:
    """Writes the engine checkpoint `source` as the `parameters` checkpoint `target`, completely or not at all.

    All values stay the same, bit for bit. DeepSpeed unpickles `source`, after its pickles were checked
    (stages/checkpoint/pickles.py). The new manifest repeats that of `source` and names `source` as its parent.
    Raises CheckpointError if `source` is not an engine checkpoint, holds files that DeepSpeed does not write, or lacks
    a parameter; raises DiskFull if the disk has too little space.
    """
    manifest = read_manifest(source)
    if manifest.kind != "engine":
        raise CheckpointError(f"{source} is not an engine checkpoint: nothing to convert")
    check_pickles(source, list_pickles(source, manifest))
    require_space(target, int(CONVERSION_SIZES * manifest.num_bytes))
    with whole_directory(target) as staging:
        fragments = staging / "fragments"
        if has_muon(manifest.group_steps):
            _take_apart_muon(source / ENGINE_TAG, fragments, manifest, parameter_shapes(manifest.model))
        else:
            _take_apart(source / ENGINE_TAG, fragments)
        files = write_parameters(staging, _states(fragments, source, manifest))
        shutil.rmtree(fragments)
        lineage = manifest.lineage.model_copy(update={"parent": manifest_hash(source)})
        converted = manifest.model_copy(update={"kind": "parameters", "files": files, "lineage": lineage})
        return finish_directory(target, converted)


def _take_apart(shards: Path, fragments: Path) -> None:
    """Writes each rank's part of each parameter's values to `fragments/<parameter>/0/<key>.<rank>`, flat."""
    optimizer_files = ds_to_universal._get_optim_files(str(shards))
    if ds_to_universal._get_zero_stage(optimizer_files) <= 2:
        checkpoint = DeepSpeedCheckpoint(str(shards))
        ds_to_universal._inject_missing_state(checkpoint)
        for rank in range(checkpoint.dp_degree):
            ds_to_universal.extract_zero_shards(str(fragments), checkpoint, (0, 0, rank))
        return
    model_files = ds_to_universal._get_zero3_model_state_files(str(shards))
    shapes, num_ranks = ds_to_universal._parse_model_states_stage3(model_files), len(optimizer_files)
    for rank in range(num_ranks):
        ds_to_universal.extract_zero_shards_stage3([optimizer_files], [shapes], num_ranks, str(fragments), (0, rank))


def _take_apart_muon(shards: Path, fragments: Path, manifest: Manifest, shapes: dict[str, tuple[int, ...]]) -> None:
    """As `_take_apart`, for an engine with Muon: DeepSpeed's converter knows only AdamW. `shapes` are those of all
    parameters; momentum becomes `exp_avg`."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    files = ds_to_universal._get_optim_files(str(shards))
    for rank, file in enumerate(files):
        state = _load(file)["optimizer_state_dict"]
        if manifest.zero_stage == 3:
            parts = _zero_3(state, shards, sizes, rank, len(files))
        else:
            parts = _zero_1_and_2(state, sizes, has_whole_momentum=manifest.precision == "fp32")
        for name, key, values in parts:
            folder = fragments / name / "0"
            folder.mkdir(parents=True, exist_ok=True)
            is_there = values.numel() == sizes[name] and any(folder.glob(f"{key}.*"))  # whole momentum, of two ranks
            if not is_there:
                torch.save(values.clone(), folder / f"{key}.{rank:02d}")


def _load(file: str) -> dict[str, Any]:
    """A file that DeepSpeed wrote, read with the globals that `check_pickles` allows and no others."""
    with torch.serialization.safe_globals([pkgutil.resolve_name(name) for name in sorted(DEEPSPEED_GLOBALS)]):
        return torch.load(file, map_location="cpu", weights_only=True)


def _zero_1_and_2(state: dict[str, Any], sizes: dict[str, int], *, has_whole_momentum: bool) -> Iterator[Part]:
    masters, mappings = state["single_partition_of_fp32_groups"], state["param_slice_mappings"]
    moments = state["base_optimizer_state"]["state"]
    for group, (master, mapping) in enumerate(zip(masters, mappings, strict=True)):
        whole = 0
        for name, place in mapping.items():
            for key, flat in _flat(master, moments[group]).items():
                start, size = place.start, place.numel
                if has_whole_momentum and MOMENTUM in moments[group] and key != "fp32":
                    start, size = whole, sizes[name]
                yield name, key, flat[start:][:size]
            whole += sizes[name]


def _zero_3(state: dict[str, Any], shards: Path, sizes: dict[str, int], rank: int, num_ranks: int) -> Iterator[Part]:
    groups = _load(ds_to_universal._get_zero3_model_state_files(str(shards))[0])["param_shapes"]
    moments = state["optimizer_state_dict"]["state"]
    for group, (master, names) in enumerate(zip(state["fp32_flat_groups"], groups, strict=True)):
        offset = 0
        for name in names:
            share = math.ceil(sizes[name] / num_ranks)
            for key, flat in _flat(master, moments[group]).items():
                yield name, key, flat[offset:][: max(0, min(share, sizes[name] - rank * share))]
            offset += share


def _flat(master: Tensor, moments: dict[str, Tensor]) -> dict[str, Tensor]:
    """A rank's flat tensors of a group, by the keys of a parameter's file."""
    if MOMENTUM in moments:
        return {"fp32": master, MOMENTS[0]: moments[MOMENTUM]}
    return {"fp32": master} | {key: moments[key] for key in MOMENTS}


def _states(fragments: Path, source: Path, manifest: Manifest) -> Iterator[tuple[str, ParameterState]]:
    """Yields every parameter of the manifest's model, complete, and deletes its parts from the disk afterwards."""
    with_muon = has_muon(manifest.group_steps)
    for name, shape in parameter_shapes(manifest.model).items():
        folder = fragments / name
        is_muons = with_muon and group_kind(name, len(shape), "muon") == "muon"
        try:
            value, *moments = (
                _joined(folder / "0", key).reshape(shape) for key in ("fp32", *MOMENTS[: 1 if is_muons else 2])
            )
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{source} does not hold all of {name}: {error}") from error
        yield name, ParameterState(value, *moments, *([torch.empty(0)] if is_muons else []))
        shutil.rmtree(folder)


def _joined(folder: Path, key: str) -> Tensor:
    """The ranks' parts, joined in rank order."""
    parts = sorted(folder.glob(f"{key}.*"), key=lambda path: int(path.suffix[1:]))
    return torch.cat([torch.load(part, map_location="cpu", weights_only=True) for part in parts])


def main() -> None:
    """Converts the checkpoint on the command line; on failure, logs the reason in one line and exits with code 1."""
    end_with_runner()
    source, target = map(Path, sys.argv[1:])
    try:
        convert(source, target)
    except (UserError, Failure) as error:
        raise SystemExit(f"growctl: {error}") from error
    except Exception as error:
        traceback.print_exc()
        raise SystemExit(f"growctl: {source} cannot be converted: {error}") from error


if __name__ == "__main__":
    main()
