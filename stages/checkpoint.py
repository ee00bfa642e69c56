"""Checkpoints with tensors in them: per parameter, out of and into a live engine, and the engine's own for resuming.

What passes between stages is one safetensors file a parameter (`stages.manifest` describes the directory). It is written
from and read into a DeepSpeed engine through the per-parameter state API, so any ZeRO stage and any number of ranks goes
on from any other. Within a stage, on the same ranks, the engine's own sharded files resume bit for bit.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
)
from torch import Tensor

from model.growth import ParameterState
from model.initialization import build_model
from model.language_model import LanguageModel
from stages.manifest import (
    CheckpointError,
    FileEntry,
    Manifest,
    begin_directory,
    finish_directory,
    list_files,
    parameter_file,
    read_manifest,
    write_file,
)

ENGINE_TAG = "engine"
MOMENTS = ("exp_avg", "exp_avg_sq")


def write_parameter(directory: Path, name: str, state: ParameterState) -> tuple[str, FileEntry]:
    """Writes one parameter's float32 value and moments below `directory`: its relative path and manifest entry."""
    file = parameter_file(name)
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in state._asdict().items()}
    return file, write_file(directory / file, safetensors.torch.save(tensors))


def read_parameter(directory: Path, manifest: Manifest, name: str, *, moments: bool = True) -> ParameterState:
    """One parameter of a `parameters` checkpoint, float32 on the CPU; moments that it does not hold are zeros.

    Its hash is checked against the manifest. With `moments=False` they come back as empty tensors.
    """
    file = parameter_file(name)
    if manifest.kind != "parameters" or file not in manifest.files:
        raise CheckpointError(f"{directory} holds no values of {name}")
    try:
        data = (directory / file).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{directory} is broken: {file}: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest() != manifest.files[file].sha256:
        raise CheckpointError(f"{directory} is broken: {file} does not have the hash in the manifest")
    tensors = safetensors.torch.load(data)
    fp32 = tensors["fp32"]
    if not moments:
        return ParameterState(fp32, torch.empty(0), torch.empty(0))
    first, second = (tensors.get(key, torch.zeros_like(fp32)) for key in MOMENTS)
    return ParameterState(fp32, first, second)


def fill_model(model: LanguageModel, directory: Path, manifest: Manifest) -> None:
    """Copies the float32 values of a `parameters` checkpoint into a plain model of the manifest's configuration."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = read_parameter(directory, manifest, name, moments=False).fp32
            if value.shape != parameter.shape:
                raise CheckpointError(
                    f"{directory} is broken: {name} has shape {list(value.shape)}, not {list(parameter.shape)}"
                )
            parameter.copy_(value)


def load_model(
    path: str | Path, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32
) -> LanguageModel:
    """The model of any finished, expanded or imported checkpoint, ready to call; CheckpointError if unusable."""
    directory = Path(path)
    manifest = read_manifest(directory)
    if manifest.kind != "parameters":
        raise CheckpointError(
            f"{directory} is an engine checkpoint, good only for resuming its stage; use a final/ or initial/ directory"
        )
    model = build_model(manifest.model, device=device)
    fill_model(model, directory, manifest)
    return model.to(dtype).eval()


def engine_states(engine: DeepSpeedEngine) -> Iterator[tuple[str, ParameterState]]:
    """Each parameter's master value and moments, whole and exact, on every rank. Collective: all ranks iterate."""
    for name, parameter in engine.module.named_parameters():
        fp32 = safe_get_full_fp32_param(parameter)
        first, second = (safe_get_full_optimizer_state(parameter, key) for key in MOMENTS)
        yield name, ParameterState(fp32.view(_shape(parameter)), first, second)


def group_steps(engine: DeepSpeedEngine) -> dict[str, int]:
    """Adam's step of each parameter group, by the group's name."""
    optimizer = engine.optimizer.optimizer
    groups = optimizer.param_groups
    return {groups[index]["name"]: int(optimizer.state[flat]["step"]) for index, flat in _flat_partitions(engine)}


def load_states(engine: DeepSpeedEngine, directory: Path, manifest: Manifest) -> None:
    """Puts a checkpoint's master values, moments and steps into an engine whose module holds those values already.

    A group that the manifest does not know (a new generation's) starts at step 0. Collective.
    """
    optimizer = engine.optimizer.optimizer
    for index, flat in _flat_partitions(engine):
        step = manifest.group_steps.get(optimizer.param_groups[index]["name"], 0)
        optimizer.state[flat] = {
            "step": torch.tensor(float(step), device=flat.device),
            "exp_avg": torch.zeros_like(flat),
            "exp_avg_sq": torch.zeros_like(flat),
        }
    if hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    for name, parameter in engine.module.named_parameters():
        state = read_parameter(directory, manifest, name)
        safe_set_full_fp32_param(parameter, state.fp32.to(parameter.device))
        for key, moment in zip(MOMENTS, state[1:], strict=True):
            safe_set_full_optimizer_state(parameter, moment.to(parameter.device), key)


def save_parameters(directory: Path, states: Iterable[tuple[str, ParameterState]]) -> dict[str, FileEntry]:
    """Writes `states` into the staging directory of `directory` on rank 0; the manifest's entries (empty elsewhere)."""
    entries: dict[str, FileEntry] = {}
    staging = begin_directory(directory) if _rank() == 0 else None
    for name, state in states:
        if staging is not None:
            file, entries[file] = write_parameter(staging, name, state)
    return entries


def save_engine(engine: DeepSpeedEngine, directory: Path, fields: dict[str, Any]) -> None:
    """Saves the engine's sharded state as the checkpoint `directory`, whole or not at all. Collective.

    `fields` are the manifest's, but for kind, files and world size.
    """
    if _rank() == 0:
        staging = begin_directory(directory)
    _barrier()
    staging = directory.with_name(f".{directory.name}.incomplete")
    engine.save_checkpoint(str(staging), tag=ENGINE_TAG, save_latest=False)
    _barrier()
    if _rank() == 0:
        files = list_files(staging)
        finish_directory(directory, Manifest(kind="engine", files=files, world_size=_world_size(), **fields))
    _barrier()


def load_engine(engine: DeepSpeedEngine, directory: Path) -> Manifest:
    """Restores what `save_engine` saved, bit for bit, on as many ranks and at the same ZeRO stage. Collective."""
    manifest = read_manifest(directory)
    if manifest.kind != "engine" or manifest.world_size != _world_size():
        raise CheckpointError(
            f"{directory} was saved by {manifest.world_size} ranks and resumes only on as many; this run has {_world_size()}"
        )
    path, _ = engine.load_checkpoint(str(directory), tag=ENGINE_TAG)
    if path is None:
        raise CheckpointError(f"{directory} is broken: DeepSpeed finds no checkpoint in it")
    return manifest


def _flat_partitions(engine: DeepSpeedEngine) -> list[tuple[int, Tensor]]:
    """(parameter group, flat float32 tensor) of this rank: what Adam steps on, under each of DeepSpeed's wrappers."""
    wrapper = engine.optimizer
    if hasattr(wrapper, "fp32_partitioned_groups_flat"):  # ZeRO-3
        return [(wrapper.sub_group_to_group_id[i], t) for i, t in enumerate(wrapper.fp32_partitioned_groups_flat)]
    if hasattr(wrapper, "fp32_groups_flat_partition"):  # BF16_Optimizer, which serves ZeRO-1 in bf16
        return list(enumerate(wrapper.fp32_groups_flat_partition))
    return list(enumerate(wrapper.single_partition_of_fp32_groups))  # ZeRO-1 and 2


def _shape(parameter: Tensor) -> torch.Size:
    return getattr(parameter, "ds_shape", parameter.shape)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()
