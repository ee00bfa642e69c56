"""Which devices are fast at bf16, and so what `training.precision: auto` comes to. No torch here."""

from functools import cache
from pathlib import Path

from model.precision import Precision, RequestedPrecision

FAST_CAPABILITY = (8, 0)
"""The compute capability from which on CUDA multiplies in bf16."""

FAST_CPU_FLAGS = ("avx512_bf16", "amx_tile")
"""What /proc/cpuinfo says of a CPU that multiplies in bf16."""


def resolve_precision(requested: RequestedPrecision, fast_bf16: bool) -> Precision:
    """What training runs in: what was requested; for auto, bf16 where the devices are fast at it."""
    if requested != "auto":
        return requested
    return "bf16" if fast_bf16 else "fp32"


def gpu_is_fast_at_bf16(capability: tuple[int, int]) -> bool:
    """Whether a GPU of that compute capability is."""
    return capability >= FAST_CAPABILITY


@cache
def cpu_is_fast_at_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this machine's CPU is; False where the file cannot be read."""
    try:
        flags = cpuinfo.read_text().split()
    except OSError:
        return False
    return any(flag in flags for flag in FAST_CPU_FLAGS)
