"""Moves a live engine's state to and from per-parameter files and DeepSpeed's sharded checkpoints.

Between stages the state passes through the per-parameter API, so any ZeRO stage on any number of ranks can continue
from any other. Within a stage, on the same number of ranks, the engine's own files resume bit for bit. Every function
here is collective: all ranks must call it.

Momentum lies in the engine in one of two ways. The wrapper of ZeRO-1 and 2 keeps that of a whole matrix on every rank
that updates a part of it. All other wrappers (BF16_Optimizer, for ZeRO-1 in bf16, and ZeRO-3) split it over the ranks
as they split the master weights and AdamW's moments, where DeepSpeed's per-parameter API finds it.
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
from stages.engine.deepspeed_api import DeepSpeedEngine, deepspeed
from stages.stage_dir import TOKENIZER_NAME, staging_directory

ENGINE_TAG = "engine"

MOMENTUM = "momentum_buffer"
"""DeepSpeed's name for Muon's momentum."""


def engine_states(engine: DeepSpeedEngine) -> Iterator[tuple[str, ParameterState]]:
    """Yields each parameter's master value and moments, complete and exact, on every rank.

    Collective: all ranks must iterate to the end.
    """
    for name, parameter in engine.module.named_parameters():
        fp32 = deepspeed.utils.safe_get_full_fp32_param(parameter)
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
            deepspeed.utils.safe_set_local_fp32_param(parameter, partition(value, parameter))
        else:
            deepspeed.utils.safe_set_full_fp32_param(parameter, value)
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


def is_muons(parameter: Tensor) -> bool:
    """Whether Muon updates this parameter of an engine."""
    return getattr(parameter, "use_muon", False)


def zero_moments(engine: DeepSpeedEngine, group: int, flat: Tensor) -> dict[str, Tensor]:
    """Moments of zero for a parameter group, of whose master weights this rank has `flat`."""
    if not engine.optimizer.param_groups[group]["use_muon"]:
        return {key: torch.zeros_like(flat) for key in MOMENTS}
    if not _keeps_whole_matrices(engine):
        return {MOMENTUM: torch.zeros_like(flat)}
    return {MOMENTUM: flat.new_zeros(sum(p.numel() for p in engine.optimizer.params_in_partition[group]))}


def get_moments(engine: DeepSpeedEngine, parameter: Tensor) -> tuple[Tensor, Tensor]:
    """Both moments of a parameter, on every rank. Muon's matrices have an empty second one. Collective."""
    if not is_muons(parameter):
        first, second = (deepspeed.utils.safe_get_full_optimizer_state(parameter, key) for key in MOMENTS)
        return first, second
    if not _keeps_whole_matrices(engine):
        return deepspeed.utils.safe_get_full_optimizer_state(parameter, MOMENTUM), torch.empty(0)
    fragment = parameter._hp_mapping  # type: ignore[attr-defined]
    whole = torch.zeros(parameter.numel(), device=parameter.device)
    if fragment is not None and fragment.lp_fragment_address.start == 0:  # one of the ranks that keep the momentum
        whole.copy_(_momentum_here(engine, parameter))
    dist.all_reduce(whole)
    return whole.view(parameter.shape), torch.empty(0)


def set_moments(engine: DeepSpeedEngine, parameter: Tensor, moments: tuple[Tensor, Tensor]) -> None:
    """Sets the moments of a parameter, which every rank gives whole. Muon's matrices take only the first."""
    values = {MOMENTUM: moments[0]} if is_muons(parameter) else dict(zip(MOMENTS, moments, strict=True))
    if is_muons(parameter) and _keeps_whole_matrices(engine):
        here = _momentum_here(engine, parameter)
        here.copy_(moments[0].flatten()[: here.numel()])
        return
    for key, value in values.items():
        if hasattr(parameter, "ds_tensor"):  # ZeRO-3, whose whole-tensor setters overrun an uneven last partition
            deepspeed.utils.safe_set_local_optimizer_state(parameter, partition(value, parameter), key)
        else:
            deepspeed.utils.safe_set_full_optimizer_state(parameter, value, key)


def takes_norm_of_updates(engine: DeepSpeedEngine) -> bool:
    """Whether the norm that DeepSpeed reports as the gradient's is that of Muon's orthogonalised updates."""
    groups = engine.optimizer.param_groups
    return has_muon(group["name"] for group in groups) and not hasattr(engine.optimizer, "bf16_groups")


def partition(tensor: Tensor, parameter: Tensor) -> Tensor:
    """This rank's ZeRO-3 partition of a whole tensor; the last rank's is padded with zeros."""
    size = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
    padded = tensor.new_zeros(size * dist.get_world_size())
    padded[: tensor.numel()] = tensor.flatten()
    return padded[size * dist.get_rank() :][:size]


def _keeps_whole_matrices(engine: DeepSpeedEngine) -> bool:
    return hasattr(engine.optimizer, "params_in_partition")


def _momentum_here(engine: DeepSpeedEngine, parameter: Tensor) -> Tensor:
    """A view of the momentum that this rank keeps for one of Muon's matrices; empty if other ranks update all of it."""
    wrapper = engine.optimizer
    for flat, members in zip(wrapper.single_partition_of_fp32_groups, wrapper.params_in_partition, strict=True):
        offset = 0
        for member in members:
            if member is parameter:
                return wrapper.optimizer.state[flat][MOMENTUM][offset:][: parameter.numel()]
            offset += member.numel()
    return torch.empty(0, device=parameter.device)
