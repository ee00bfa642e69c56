"""The devices of this machine that ranks can use, and the precision that suits them.

Imports torch only where it asks it: growctl/launch/devices.py decides without torch if it can.
"""

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from model.precision import Precision, RequestedPrecision

if TYPE_CHECKING:
    import torch


def resolve_precision(requested: RequestedPrecision, fast_bf16: bool) -> Precision:
    """The precision to train in: the requested one; for `auto`, bf16 if the devices are fast at it, else fp32."""
    if requested != "auto":
        return requested
    return "bf16" if fast_bf16 else "fp32"


@cache
def cpu_is_fast_at_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this machine's CPU multiplies in bf16; False if the file cannot be read."""
    try:
        flags = cpuinfo.read_text().split()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_tile" in flags


def visible_gpus() -> "list[torch.device]":
    """Every GPU that torch can use, NVIDIA's or AMD's; empty if DS_ACCELERATOR is `cpu`."""
    import torch

    if os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available():
        return []
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def device_name(device: "torch.device") -> str:
    """The device's product name, for the ledger."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    return cpu_name()


def cpu_name() -> str:
    """The name of this machine's CPU, for the ledger."""
    with open("/proc/cpuinfo") as cpuinfo:
        names = [line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")]
    return f"CPU {names[0]}" if names else "CPU"


def is_fast_at_bf16(device: "torch.device") -> bool:
    """Whether the device computes fast in bf16: a GPU of compute capability 8 or newer, for example."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_capability(device) >= (8, 0)
    return cpu_is_fast_at_bf16()


def wait_for(device: "torch.device") -> None:
    """Waits until the device has finished all its work, so that it can be timed."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
