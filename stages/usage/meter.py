"""Measures what all ranks of an attempt have used: energy, by NVML's counters for GPUs and RAPL's for the processors of
a machine, and memory at its peak."""

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from stages.metrics_lines import Usage

POWERCAP = Path("/sys/class/powercap")
"""Where Linux shows RAPL's counters, on Intel's and AMD's processors."""


class Counter:
    """The joules since it was made, from a total that only rises, and that may wrap around."""

    def __init__(self, read: Callable[[], float], wraps_at: float | None = None) -> None:
        """`read` returns the total in joules; `wraps_at` is the total at which it starts from 0 again.

        A total that falls without wrapping around was reset, by a new driver for example: the energy is then unknown.
        So is it if more than one round lies between two readings; RAPL needs minutes for one.
        """
        self._read, self._wraps_at = read, wraps_at
        self._last = read()
        self._joules = 0.0

    def joules(self) -> float:
        """The joules since this counter was made; NaN from a failure of the counter on."""
        try:
            total = self._read()
        except (OSError, ValueError):
            total = math.nan
        used = total - self._last
        if used < 0:
            used += self._wraps_at or math.nan
        self._last = total
        self._joules += used
        return self._joules


def gpu_counter(uuid: str) -> Counter | None:
    """NVML's counter of the GPU with this UUID; None without nvidia-ml-py, or if NVML has no counter for it."""
    try:
        import pynvml  # optional: growctl[gpu]
    except ImportError:
        return None

    def joules() -> float:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(device)) / 1e3  # in mJ
        except pynvml.NVMLError as error:
            raise OSError(str(error)) from error

    try:
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return Counter(joules)
    except (pynvml.NVMLError, OSError):
        return None


def cpu_counters(powercap: Path = POWERCAP) -> Sequence[Counter]:
    """The counters of this machine's processors and of their memory; empty unless all of them can be read.

    They count for the whole machine, whichever process uses it. Left out are parts of a processor (`core`, `uncore`)
    and the whole platform (`psys`), which would count the same energy twice.
    """
    try:
        zones = {zone: (zone / "name").read_text().strip() for zone in sorted(powercap.glob("intel-rapl:*"))}
        counted = [zone for zone, name in zones.items() if name.startswith("package-") or name == "dram"]
        return [_rapl_counter(zone) for zone in counted]
    except (OSError, ValueError):  # by default, only root may read the counters
        return []


def _rapl_counter(zone: Path) -> Counter:
    wraps_at = int((zone / "max_energy_range_uj").read_text()) / 1e6
    return Counter(lambda: int((zone / "energy_uj").read_text()) / 1e6, wraps_at)


def resident_bytes(key: Literal["VmRSS", "VmHWM"]) -> int | None:
    """Resident memory (RSS) in bytes: `VmRSS` now, `VmHWM` at its peak; None if the kernel does not say."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return None


class UsageMeter:
    """Counts what this rank uses, from now on. The first rank of each machine counts the machine's processors too."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gpu = gpu_counter(f"GPU-{torch.cuda.get_device_properties(device).uuid}") if device.type == "cuda" else None
        self._gpus = [gpu] if gpu else []
        self._is_first = int(os.environ.get("LOCAL_RANK", "0")) == 0
        self._cpus = cpu_counters() if self._is_first else []

    def read(self) -> Usage:
        """What all ranks have used since their meters were made. Collective; waits for the device."""
        own = torch.tensor(self._own(), dtype=torch.float64, device=self._device)
        ranks = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, own)
        gpu, cpu, gpu_bytes, resident = torch.stack(ranks).T.tolist()
        return Usage(
            gpu_joules=_known(sum(gpu)),
            cpu_joules=_known(sum(cpu)),
            peak_gpu_bytes=_most(gpu_bytes),
            peak_resident_bytes=_most(resident),
        )

    def _own(self) -> tuple[float, float, float, float]:
        """This rank's joules, NaN if unknown, and bytes, 0 if unknown."""
        gpu_bytes = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0
        cpus = _joules(self._cpus) if self._is_first else 0.0
        return _joules(self._gpus), cpus, gpu_bytes, resident_bytes("VmHWM") or 0


def _joules(counters: Sequence[Counter]) -> float:
    """The joules of some counters; NaN without any."""
    return sum(counter.joules() for counter in counters) if counters else math.nan


def _known(joules: float) -> float | None:
    return round(joules, 3) if math.isfinite(joules) else None


def _most(num_bytes: Sequence[float]) -> int | None:
    return int(max(num_bytes)) or None
