"""Resolves `training.precision: auto` from whether devices compute fast in bf16.

Imports no torch.
"""

from functools import cache
from pathlib import Path

from model.precision import Precision, RequestedPrecision

FAST_CAPABILITY = (8, 0)
"""The lowest compute capability with bf16 multiplication."""

FAST_CPU_FLAGS = ("avx512_bf16", "amx_tile")
"""Flags in /proc/cpuinfo of CPUs with bf16 multiplication."""


def resolve_precision(requested: RequestedPrecision, fast_bf16: bool) -> Precision:
    """The precision to train in: the requested one; for `auto`, bf16 if the devices are fast at it, else fp32."""
    if requested != "auto":
        return requested
    return "bf16" if fast_bf16 else "fp32"


def gpu_is_fast_at_bf16(capability: tuple[int, int]) -> bool:
    """Whether a GPU of this compute capability is fast at bf16."""
    return capability >= FAST_CAPABILITY


@cache
def cpu_is_fast_at_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this machine's CPU is fast at bf16; False if the file cannot be read."""
    try:
        flags = cpuinfo.read_text().split()
    except OSError:
        return False
    return any(flag in flags for flag in FAST_CPU_FLAGS)
