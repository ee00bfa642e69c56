"""Measures what all ranks of an attempt have used: the GPUs' energy, by NVML's counters, and memory at its peak."""

import math
import resource
from collections.abc import Callable
from contextlib import suppress

import torch
import torch.distributed as dist

from stages.metrics_lines import Usage


def gpu_counter(uuid: str) -> Callable[[], float] | None:
    """Returns a function for the joules since now of the GPU with this UUID.

    The joules are NaN if NVML fails or its total was reset, by a new driver for example. None without nvidia-ml-py or a
    counter of the GPU.
    """
    try:
        import pynvml  # optional: growctl[gpu]
    except ImportError:
        return None

    def total() -> float:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(device)) / 1e3  # in mJ

    try:
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        start = total()
    except pynvml.NVMLError:
        return None

    def joules() -> float:
        with suppress(pynvml.NVMLError):
            used = total() - start
            return used if used >= 0 else math.nan
        return math.nan

    return joules


class UsageMeter:
    """Counts what the ranks use, from now on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        on_gpu = device.type == "cuda"
        self._joules = gpu_counter(f"GPU-{torch.cuda.get_device_properties(device).uuid}") if on_gpu else None

    def read(self) -> Usage:
        """What all ranks have used since their meters were made. Collective; waits for the device."""
        joules = self._joules() if self._joules else math.nan
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
