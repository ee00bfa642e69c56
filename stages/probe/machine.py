"""Prints the facts a worker finds about this machine, as JSON on the last line of the output.

For `growctl doctor`:

    python -m stages.probe.machine

This runs in a separate process, so that a crash of torch or a failed import of DeepSpeed becomes a line of the report.
"""

import ctypes

import torch

from stages.probe.devices import find_devices
from stages.probe.machine_facts import DeviceFacts, MachineFacts


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


def describe() -> MachineFacts:
    """Versions and devices of this machine; `problem` is set if DeepSpeed cannot be imported."""
    version: str | None = None
    problem: str | None = None
    found: tuple[DeviceFacts, ...] = ()
    try:
        from stages.engine.deepspeed_api import deepspeed

        version, found = deepspeed.__version__, find_devices()
    except Exception as error:  # an import can run any code
        problem = f"{type(error).__name__}: {error}"
    return MachineFacts(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        driver=driver_version(),
        deepspeed=version,
        problem=problem,
        devices=found,
    )


if __name__ == "__main__":
    print(describe().model_dump_json())
