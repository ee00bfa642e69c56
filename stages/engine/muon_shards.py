"""Splits the shards of an engine with Muon into parameters, which DeepSpeed's converter cannot: it knows only AdamW.

Writes the same files as that: `fragments/<parameter>/0/<key>.<rank>`, flat, with momentum as `exp_avg`.
"""

import math
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.checkpoint.manifest import Manifest
from stages.checkpoint.parameters import MOMENTS
from stages.checkpoint.pickles import DEEPSPEED_GLOBALS
from stages.engine.deepspeed_api import ds_to_universal
from stages.engine.moments import MOMENTUM

Part = tuple[str, str, Tensor]
"""Parameter, key and values of what one rank has of them."""


def take_apart(shards: Path, fragments: Path, manifest: Manifest, shapes: dict[str, tuple[int, ...]]) -> None:
    """Writes each rank's part of each parameter's values. `shapes` are those of all parameters."""
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
