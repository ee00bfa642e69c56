"""Prints what a worker finds about this machine, as JSON on the last line of the output.

    python -m stages.probe.machine [--deepspeed]

It is a separate process, so that the caller does not have to import torch and holds no GPU memory, and a crash is a
line of the report. Only `growctl doctor` also asks for DeepSpeed, whose import is slow.
"""

import ctypes
import os
import sys

import torch

from stages.engine.devices import device_name, is_fast_at_bf16, visible_gpus
from stages.probe.records import DeviceFacts, MachineFacts


def describe(*, with_deepspeed: bool) -> MachineFacts:
    """Versions and devices of this machine; `problem` is set if DeepSpeed was to be imported and cannot be."""
    problem: str | None = None
    if with_deepspeed:
        try:
            import stages.engine.deepspeed_api  # noqa: F401
        except Exception as error:  # an import can run any code
            problem = f"{type(error).__name__}: {error}"
    return MachineFacts(
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        driver=driver_version(),
        problem=problem,
        devices=tuple(map(_facts, visible_gpus() or [torch.device("cpu")])),
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
    print(describe(with_deepspeed="--deepspeed" in sys.argv).model_dump_json())
