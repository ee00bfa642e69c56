"""Measures what all ranks of an attempt have used: the GPUs' energy, by NVML's counters, and memory at its peak."""

import math
import resource
from contextlib import suppress

import torch
import torch.distributed as dist

from stages.metrics_lines import Usage


def gpu_joules(uuid: str) -> float:
    """Joules that the GPU with this UUID has used so far; NaN without nvidia-ml-py, or if the GPU has no counter."""
    try:
        import pynvml  # optional: growctl[gpu]
    except ImportError:
        return math.nan
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(device)) / 1e3  # in mJ
    return math.nan


class UsageMeter:
    """Counts what the ranks use, from now on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else None
        self._joules_before = gpu_joules(self._uuid) if self._uuid else math.nan

    def read(self) -> Usage:
        """What all ranks have used since their meters were made. Collective; waits for the device."""
        joules = gpu_joules(self._uuid) - self._joules_before if self._uuid else math.nan
        joules = joules if joules >= 0 else math.nan  # a new driver counts from 0
        gpu_bytes = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0
        resident_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        own = torch.tensor((joules, gpu_bytes, resident_bytes), dtype=torch.float64, device=self._device)
        ranks = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, own)
        all_joules, all_gpu_bytes, resident = torch.stack(ranks).T.tolist()
        return Usage(
            gpu_joules=round(sum(all_joules), 3) if math.isfinite(sum(all_joules)) else None,
            peak_gpu_bytes=int(max(all_gpu_bytes)) or None,
            peak_resident_bytes=int(max(resident)),
        )
