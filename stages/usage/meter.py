"""Measures what all ranks of an attempt have used: energy, and memory at its peak."""

import math
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from stages.usage.energy import Counter, cpu_counters, gpu_counter
from stages.usage.resident_memory import resident_bytes


class Usage(NamedTuple):
    """What the ranks have used since their meters were made. None is unknown."""

    gpu_joules: float | None
    """Joules of the GPUs."""
    cpu_joules: float | None
    """Joules of the machines' processors, with what other processes used."""
    peak_gpu_bytes: int | None
    """Bytes that torch had allocated on a GPU at the peak: the largest of all GPUs."""
    peak_resident_bytes: int | None
    """Resident memory of a rank's process at its peak: the largest of all ranks."""


class Meter:
    """Counts what this rank uses, from now on. The first rank of each machine counts the machine's processors too."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._gpu = _counter(device) if device.type == "cuda" else None
        self._is_first = int(os.environ.get("LOCAL_RANK", "0")) == 0
        self._cpus = cpu_counters() if self._is_first else []

    def read(self) -> Usage:
        """What all ranks have used. Collective; waits for the device."""
        own = torch.tensor(self._own(), dtype=torch.float64, device=self._device)
        ranks = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, own)
        gpu, cpu, gpu_bytes, resident = torch.stack(ranks).T.tolist()
        return Usage(_known(sum(gpu)), _known(sum(cpu)), _most(gpu_bytes), _most(resident))

    def _own(self) -> tuple[float, float, float, float]:
        """This rank's joules, NaN if unknown, and bytes, 0 if unknown."""
        gpu_bytes = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0
        cpus = _joules(self._cpus) if self._is_first else 0.0
        return _joules([self._gpu] if self._gpu else []), cpus, gpu_bytes, resident_bytes("VmHWM") or 0


def _counter(gpu: torch.device) -> Counter | None:
    return gpu_counter(f"GPU-{torch.cuda.get_device_properties(gpu).uuid}")


def _joules(counters: Sequence[Counter]) -> float:
    """The joules of some counters; NaN without any."""
    return sum(counter.joules() for counter in counters) if counters else math.nan


def _known(joules: float) -> float | None:
    return round(joules, 3) if math.isfinite(joules) else None


def _most(num_bytes: Sequence[float]) -> int | None:
    return int(max(num_bytes)) or None
