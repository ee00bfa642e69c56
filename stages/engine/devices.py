"""Lists the devices of this machine that ranks can use, through torch.

growctl/launch/devices.py decides without torch if it can, and otherwise uses this module.
"""

import os

import torch

from stages.engine.precision import cpu_is_fast_at_bf16, gpu_is_fast_at_bf16


def visible_gpus() -> list[torch.device]:
    """Every GPU that torch can use, NVIDIA's or AMD's; empty if DS_ACCELERATOR is `cpu`."""
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available():
        return []
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def device_name(device: torch.device) -> str:
    """The device's product name, for the ledger."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with open("/proc/cpuinfo") as cpuinfo:
        names = [line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name")]
    return f"CPU {names[0]}" if names else "CPU"


def is_fast_at_bf16(device: torch.device) -> bool:
    """Whether the device computes fast in bf16."""
    if device.type == "cuda":
        return gpu_is_fast_at_bf16(torch.cuda.get_device_capability(device))
    return cpu_is_fast_at_bf16()


def wait_for(device: torch.device) -> None:
    """Waits until the device has finished all its work, so that it can be timed."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
