"""The moments of a parameter in a live engine, whole: AdamW's two, or Muon's momentum in place of the first.

Momentum lies in the engine in one of two ways. The wrapper of ZeRO-1 and 2 keeps that of a whole matrix on every rank
that updates a part of it. All other wrappers (BF16_Optimizer, for ZeRO-1 in bf16, and ZeRO-3) split it over the ranks
as they split the master weights and AdamW's moments, where DeepSpeed's per-parameter API finds it.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from model.parameter_names import has_muon
from stages.checkpoint.parameters import MOMENTS
from stages.engine.deepspeed_api import (
    DeepSpeedEngine,
    safe_get_full_optimizer_state,
    safe_set_full_optimizer_state,
    safe_set_local_optimizer_state,
)

MOMENTUM = "momentum_buffer"
"""DeepSpeed's name for Muon's momentum."""


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
        first, second = (safe_get_full_optimizer_state(parameter, key) for key in MOMENTS)
        return first, second
    if not _keeps_whole_matrices(engine):
        return safe_get_full_optimizer_state(parameter, MOMENTUM), torch.empty(0)
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
            safe_set_local_optimizer_state(parameter, partition(value, parameter), key)
        else:
            safe_set_full_optimizer_state(parameter, value, key)


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
