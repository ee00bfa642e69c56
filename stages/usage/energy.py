"""Energy counters: NVML's for a GPU, and RAPL's for the processors of a machine."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
    """The counter of the GPU with this UUID; None without nvidia-ml-py, or if NVML has no counter for it."""
    try:
        import pynvml  # optional: growctl[gpu]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        return Counter(lambda: _nvml_joules(pynvml, device))
    except (pynvml.NVMLError, OSError):
        return None


def _nvml_joules(pynvml: Any, device: Any) -> float:
    try:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(device)) / 1e3  # in mJ
    except pynvml.NVMLError as error:
        raise OSError(str(error)) from error


def cpu_counters(powercap: Path = POWERCAP) -> Sequence[Counter]:
    """The counters of this machine's processors and of their memory; empty unless all of them can be read.

    They count for the whole machine, whichever process uses it. Left out are parts of a processor (`core`, `uncore`)
    and the whole platform (`psys`), which would count the same energy twice.
    """
    try:
        zones = {zone: _text(zone / "name") for zone in sorted(powercap.glob("intel-rapl:*"))}
        counted = [zone for zone, name in zones.items() if name.startswith("package-") or name == "dram"]
        return [_rapl_counter(zone) for zone in counted]
    except (OSError, ValueError):  # by default, only root may read the counters
        return []


def _rapl_counter(zone: Path) -> Counter:
    wraps_at = int(_text(zone / "max_energy_range_uj")) / 1e6
    return Counter(lambda: int(_text(zone / "energy_uj")) / 1e6, wraps_at)


def _text(path: Path) -> str:
    return path.read_text().strip()
