"""Prints what a worker finds about this machine, as JSON on the last line of the output.

    python -m stages.probe.machine [--devices]

`growctl doctor` asks for everything, other commands for the devices alone, without DeepSpeed. It is a separate
process, so that the caller does not have to import torch and holds no GPU memory, and a crash is a line of the report.
"""

import ctypes
import os
import sys

import torch
from pydantic import TypeAdapter

from stages.engine.devices import device_name, is_fast_at_bf16, visible_gpus
from stages.probe.records import DeviceFacts, MachineFacts


def describe() -> MachineFacts:
    """Versions and devices of this machine; `problem` is set if DeepSpeed cannot be imported."""
    version: str | None = None
    problem: str | None = None
    try:
        from stages.engine.deepspeed_api import deepspeed

        version = deepspeed.__version__
    except Exception as error:  # an import can run any code
        problem = f"{type(error).__name__}: {error}"
    return MachineFacts(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        driver=driver_version(),
        deepspeed=version,
        problem=problem,
        devices=find_devices(),
    )


def driver_version() -> str | None:
    """The newest CUDA version that the NVIDIA driver supports, as '12.4'; None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def find_devices() -> tuple[DeviceFacts, ...]:
    """Every GPU, or the CPU if there is none."""
    return tuple(map(_facts, visible_gpus() or [torch.device("cpu")]))


def _facts(device: torch.device) -> DeviceFacts:
    capability = free_bytes = None
    if device.type == "cuda":
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
        free_bytes, memory_bytes = torch.cuda.mem_get_info(device)
    else:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DeviceFacts(
        kind="cuda" if device.type == "cuda" else "cpu",
        name=device_name(device),
        memory_bytes=memory_bytes,
        free_bytes=free_bytes,
        capability=capability,
        fast_bf16=is_fast_at_bf16(device),
    )


if __name__ == "__main__":
    if "--devices" in sys.argv:
        print(TypeAdapter(tuple[DeviceFacts, ...]).dump_json(find_devices()).decode())
    else:
        print(describe().model_dump_json())
