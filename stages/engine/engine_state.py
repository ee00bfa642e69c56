"""Moves a live engine's state to and from per-parameter files and DeepSpeed's sharded checkpoints.

Between stages the state passes through the per-parameter API, so any ZeRO stage on any number of ranks can continue
from any other. Within a stage, on the same number of ranks, the engine's own files resume bit for bit. Every function
here is collective: all ranks must call it.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from model.growth import ParameterState
from model.parameter_names import OptimizerName, group_name, has_muon
from stages.checkpoint.directory import begin_directory, finish_directory
from stages.checkpoint.files import FileEntry, list_files, write_file
from stages.checkpoint.manifest import CheckpointError, Manifest, read_manifest
from stages.checkpoint.parameters import MOMENTS, read_parameter, write_parameters
from stages.checkpoint.pickles import check_pickles, list_pickles
from stages.counted import plural
from stages.engine.deepspeed_api import (
    DeepSpeedEngine,
    safe_get_full_fp32_param,
    safe_set_full_fp32_param,
    safe_set_local_fp32_param,
)
from stages.engine.moments import get_moments, is_muons, partition, set_moments, zero_moments
from stages.stage_dir import TOKENIZER_NAME, staging_directory

ENGINE_TAG = "engine"


def engine_states(engine: DeepSpeedEngine) -> Iterator[tuple[str, ParameterState]]:
    """Yields each parameter's master value and moments, complete and exact, on every rank.

    Collective: all ranks must iterate to the end.
    """
    for name, parameter in engine.module.named_parameters():
        fp32 = safe_get_full_fp32_param(parameter)
        yield name, ParameterState(fp32.view(_shape(parameter)), *get_moments(engine, parameter))


def group_steps(engine: DeepSpeedEngine) -> dict[str, int]:
    """The optimizer's step for each parameter group, by group name."""
    optimizer = engine.optimizer.optimizer
    groups = optimizer.param_groups
    return {groups[index]["name"]: int(optimizer.state[flat]["step"]) for index, flat in _flat_partitions(engine)}


def start_moments(engine: DeepSpeedEngine, steps: dict[str, int]) -> None:
    """Sets every parameter group's moments to zero and its step to that in `steps` (0 if missing there).

    Call it on a new engine, before its first step. DeepSpeed would create the moments in that step, but ZeRO-1 and 2
    then link only the first group's moments to its parameters, and those of other groups cannot be read.
    """
    optimizer = engine.optimizer.optimizer
    for index, flat in _flat_partitions(engine):
        step = steps.get(optimizer.param_groups[index]["name"], 0)
        # Fused AdamW keeps its step on the device.
        started = {"step": torch.tensor(float(step), device=flat.device)}
        optimizer.state[flat] = started | zero_moments(engine, index, flat)
    _link_moments(engine)


def drop_rejected_gradient(engine: DeepSpeedEngine) -> None:
    """Drops the gradient of an update that DeepSpeed has just rejected.

    DeepSpeed does this itself unless Adam is offloaded. With offloading, ZeRO-1 and 2 in bf16 keep the gradient and add
    every later one to it, so they would reject every later update too.
    """
    wrapper = engine.optimizer
    if getattr(wrapper, "cpu_offload", False):  # ZeRO-3 has another name for this, and clears its gradients
        wrapper.averaged_gradients = dict.fromkeys(wrapper.averaged_gradients)


def load_states(engine: DeepSpeedEngine, directory: Path, manifest: Manifest) -> None:
    """Loads a checkpoint's master values, moments and steps into an engine whose module already has the values.

    Parameter groups missing from the manifest's `group_steps` start with zero moments. So do all groups of an engine
    without Muon if the manifest has Muon's: the momentum of its matrices is no moment of AdamW's.
    """
    groups = {group["name"] for group in engine.optimizer.param_groups}
    steps = {} if has_muon(manifest.group_steps) and not has_muon(groups) else manifest.group_steps
    start_moments(engine, steps)
    for name, parameter in engine.module.named_parameters():
        state = read_parameter(directory, manifest, name)
        optimizer: OptimizerName = "muon" if is_muons(parameter) else "adamw"
        if group_name(name, len(_shape(parameter)), optimizer) not in steps:
            state = state._replace(**{key: torch.zeros_like(state.fp32) for key in MOMENTS})
        value, first, second = (tensor.to(parameter.device) for tensor in state)
        if hasattr(parameter, "ds_tensor"):
            safe_set_local_fp32_param(parameter, partition(value, parameter))
        else:
            safe_set_full_fp32_param(parameter, value)
        set_moments(engine, parameter, (first, second))


def save_parameters(
    directory: Path, states: Iterable[tuple[str, ParameterState]], tokenizer: Path | None = None
) -> dict[str, FileEntry]:
    """Writes `states` and a copy of the file `tokenizer` into the staging directory of `directory` on rank 0.

    Returns the manifest's file entries; on other ranks they are empty.
    """
    if dist.get_rank() > 0:
        deque(states, maxlen=0)
        return {}
    staging = begin_directory(directory)
    entries = write_parameters(staging, states)
    if tokenizer is not None:
        entries[TOKENIZER_NAME] = write_file(staging / TOKENIZER_NAME, tokenizer.read_bytes())
    return entries


def save_engine(engine: DeepSpeedEngine, directory: Path, fields: dict[str, Any]) -> None:
    """Saves the engine's sharded state as the checkpoint `directory`, completely or not at all. Collective.

    `fields` are the manifest's fields except kind, files and world size.
    """
    if dist.get_rank() == 0:
        begin_directory(directory)
    dist.barrier()
    staging = staging_directory(directory)
    engine.save_checkpoint(str(staging), tag=ENGINE_TAG, save_latest=False)
    dist.barrier()
    if dist.get_rank() == 0:
        manifest = Manifest(kind="engine", files=list_files(staging), world_size=dist.get_world_size(), **fields)
        finish_directory(directory, manifest)
    dist.barrier()


def load_engine(engine: DeepSpeedEngine, directory: Path) -> Manifest:
    """Restores what `save_engine` saved, bit for bit, on the same number of ranks and ZeRO stage. Collective.

    Raises CheckpointError if that is not possible, before DeepSpeed unpickles any file.
    """
    manifest = read_manifest(directory)
    if manifest.kind != "engine" or manifest.world_size != dist.get_world_size():
        raise CheckpointError(
            f"{directory} was saved by {manifest.world_size} {plural(manifest.world_size or 0, 'rank')} and resumes "
            f"only on the same number; this run has {dist.get_world_size()}"
        )
    check_pickles(directory, list_pickles(directory, manifest)[dist.get_rank() :: dist.get_world_size()])
    dist.barrier()
    path, _ = engine.load_checkpoint(str(directory), tag=ENGINE_TAG)
    if path is None:
        raise CheckpointError(f"{directory} is broken: DeepSpeed finds no checkpoint in it")
    _link_moments(engine)
    return manifest


def _link_moments(engine: DeepSpeedEngine) -> None:
    """Links the optimizer's present moments to the per-parameter API (ZeRO-3 needs no links)."""
    wrapper = engine.optimizer
    if hasattr(wrapper, "_lazy_init_hp_params_optimizer_state"):
        wrapper._hp_optimizer_states_linked = False
        wrapper._lazy_init_hp_params_optimizer_state()


def _flat_partitions(engine: DeepSpeedEngine) -> list[tuple[int, Tensor]]:
    """This rank's (parameter group index, flat float32 tensor) pairs, which Adam updates, for any DeepSpeed wrapper."""
    wrapper = engine.optimizer
    if hasattr(wrapper, "fp32_partitioned_groups_flat"):  # ZeRO-3
        return [(wrapper.sub_group_to_group_id[i], t) for i, t in enumerate(wrapper.fp32_partitioned_groups_flat)]
    if hasattr(wrapper, "fp32_groups_flat_partition"):  # BF16_Optimizer, for ZeRO-1 in bf16
        return list(enumerate(wrapper.fp32_groups_flat_partition))
    return list(enumerate(wrapper.single_partition_of_fp32_groups))  # ZeRO-1 and 2


def _shape(parameter: Tensor) -> torch.Size:
    return getattr(parameter, "ds_shape", parameter.shape)
