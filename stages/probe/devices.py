"""Prints the devices that ranks would use in this environment, as JSON on the last line of the output.

    python -m stages.probe.devices

It is a separate process, so the caller does not have to import torch and holds no GPU memory.
"""

import os

import torch
from pydantic import TypeAdapter

from stages.engine.devices import device_name, is_fast_at_bf16, visible_gpus
from stages.probe.machine_facts import DeviceFacts


def find_devices() -> tuple[DeviceFacts, ...]:
    """Every GPU, or the CPU if there is none."""
    return tuple(_facts(device) for device in visible_gpus() or [torch.device("cpu")])


def _facts(device: torch.device) -> DeviceFacts:
    on_gpu = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if on_gpu else None
    return DeviceFacts(
        kind="cuda" if on_gpu else "cpu",
        name=device_name(device),
        memory_bytes=properties.total_memory if properties else _host_memory(),
        free_bytes=torch.cuda.mem_get_info(device)[0] if on_gpu else None,
        capability=f"{properties.major}.{properties.minor}" if properties else None,
        fast_bf16=is_fast_at_bf16(device),
    )


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


if __name__ == "__main__":
    print(TypeAdapter(tuple[DeviceFacts, ...]).dump_json(find_devices()).decode())
