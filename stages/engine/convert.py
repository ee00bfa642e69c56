"""Rewrites an engine checkpoint parameter by parameter for other ranks or another ZeRO stage.

A process of its own, which ends with the runner that starts it:

    python -m stages.engine.convert STEP_DIRECTORY TARGET

DeepSpeed's converter to its universal format is not used: it needs three copies on the disk, knows no Muon, and loading
its result silently loses groups (docs/architecture.md, decision 3).
"""

import math
import pkgutil
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.errors import Failure, UserError
from model.growth import ParameterState
from model.parameter_names import group_kind, has_muon
from model.shapes import parameter_shapes
from stages.checkpoint.directory import finish_directory, whole_directory
from stages.checkpoint.manifest import CheckpointError, Manifest, manifest_hash, read_manifest
from stages.checkpoint.parameters import MOMENTS, write_parameters
from stages.checkpoint.pickles import DEEPSPEED_GLOBALS, check_pickles, list_pickles
from stages.engine.engine_state import ENGINE_TAG, MOMENTUM
from stages.process.lifeline import end_with_runner

Part = tuple[str, str, Tensor]
"""Parameter, key and values of what one rank has of them."""


def convert(source: Path, target: Path) -> Manifest:
    """Writes the engine checkpoint `source` as the `parameters` checkpoint `target`, completely or not at all.

    All values stay the same, bit for bit. The pickles of `source` are checked before they are read
    (stages/checkpoint/pickles.py). The new manifest repeats that of `source` and names `source` as its parent. Raises
    CheckpointError if `source` is not an engine checkpoint, holds files that DeepSpeed does not write, or lacks a
    parameter; raises DiskFull if the disk has too little space.
    """
    manifest = read_manifest(source)
    if manifest.kind != "engine":
        raise CheckpointError(f"{source} is not an engine checkpoint: nothing to convert")
    check_pickles(source, list_pickles(source, manifest))
    with whole_directory(target, manifest.num_bytes) as staging:
        files = write_parameters(staging, _states(source, manifest))
        lineage = manifest.lineage.model_copy(update={"parent": manifest_hash(source)})
        converted = manifest.model_copy(update={"kind": "parameters", "files": files, "lineage": lineage})
        return finish_directory(target, converted)


def _states(source: Path, manifest: Manifest) -> Iterator[tuple[str, ParameterState]]:
    """Yields every parameter of the manifest's model, joined from the parts of all ranks, in their order."""
    shapes, with_muon = parameter_shapes(manifest.model), has_muon(manifest.group_steps)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    joined: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    for name, key, values in _parts(source / ENGINE_TAG, manifest, sizes):
        if not (joined[name, key] and len(values) == sizes[name]):  # else it is whole momentum, of two ranks
            joined[name, key].append(values)
    for name, shape in shapes.items():
        is_muons = with_muon and group_kind(name, len(shape), "muon") == "muon"
        keys = ("fp32", *MOMENTS[: 1 if is_muons else 2])
        try:
            value, *moments = (torch.cat(joined[name, key]).reshape(shape) for key in keys)
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{source} does not hold all of {name}: {error}") from error
        yield name, ParameterState(value, *moments, *([torch.empty(0)] if is_muons else []))


def _parts(shards: Path, manifest: Manifest, sizes: dict[str, int]) -> Iterator[Part]:
    """Yields each rank's part of each parameter's values, as flat views of the memory-mapped files."""
    num_ranks = manifest.world_size or 0
    for rank in range(num_ranks):
        file = next(shards.glob(f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"), None)
        if file is None:
            raise CheckpointError(f"{shards} has no optimizer states of rank {rank}")
        state = _load(file)["optimizer_state_dict"]
        if manifest.zero_stage == 3:
            groups = _load(shards / "zero_pp_rank_0_mp_rank_00_model_states.pt")["param_shapes"]
            yield from _zero_3(state, groups, sizes, rank, num_ranks)
        else:
            yield from _zero_1_and_2(state, sizes, has_whole_momentum=manifest.precision == "fp32")


def _load(file: Path) -> dict[str, Any]:
    """A file that DeepSpeed wrote, read with the globals that `check_pickles` allows and no others."""
    with torch.serialization.safe_globals([pkgutil.resolve_name(name) for name in sorted(DEEPSPEED_GLOBALS)]):
        return torch.load(file, map_location="cpu", mmap=True, weights_only=True)


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


def _zero_3(
    state: dict[str, Any], groups: list[dict[str, Any]], sizes: dict[str, int], rank: int, num_ranks: int
) -> Iterator[Part]:
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
