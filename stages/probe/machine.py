"""Prints what a worker finds on this machine, as JSON on the last line of its output.

For `growctl doctor`:

    python -m stages.probe.machine

In a process of its own: a torch that crashes, or a DeepSpeed that cannot be imported, is then a line of the report.
"""

import ctypes
import os

import torch

from stages.probe.machine_facts import DeviceFacts, MachineFacts


def driver_version() -> str | None:
    """The newest CUDA that the NVIDIA driver runs, '12.4'; None without one."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def devices() -> tuple[DeviceFacts, ...]:
    """Every GPU; without one, the CPU."""
    from stages.engine.engine import choose_precision, device_name

    def facts(device: torch.device) -> DeviceFacts:
        on_gpu = device.type == "cuda"
        properties = torch.cuda.get_device_properties(device) if on_gpu else None
        return DeviceFacts(
            kind="cuda" if on_gpu else "cpu",
            name=device_name(device),
            memory_bytes=properties.total_memory if properties else _memory(),
            free_bytes=torch.cuda.mem_get_info(device)[0] if on_gpu else None,
            capability=f"{properties.major}.{properties.minor}" if properties else None,
            fast_bf16=choose_precision("auto", device) == "bf16",
        )

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = [torch.device("cuda", index) for index in range(num_gpus)]
    return tuple(facts(device) for device in gpus or [torch.device("cpu")])


def describe() -> MachineFacts:
    """Versions and devices of this machine; a DeepSpeed that cannot be imported is its `problem`."""
    version: str | None = None
    problem: str | None = None
    found: tuple[DeviceFacts, ...] = ()
    try:
        import deepspeed

        version, found = deepspeed.__version__, devices()
    except Exception as error:  # an import runs whatever code it likes
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


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


if __name__ == "__main__":
    print(describe().model_dump_json())
