"""Describes the GPU and its software, and measures its peak rates: a large bf16 product and a copy."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from benchmarks.gpu.section import Section
from benchmarks.gpu.timing import interleaved, spread

SUSTAINED_ROUNDS = 2000
"""Upper limit; the time that `interleaved` gives a variant ends it earlier."""

KEPT_SAMPLES = 50
COPIED_BYTES = 4 * 10**9
PACKAGES = ("torch", "triton", "deepspeed", "liger-kernel", "numpy", "pydantic")
ASKED = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit", "temperature.gpu")


def measure(section: Section) -> None:
    """Measures the device's own speed, to compare all other numbers with."""
    section.facts["machine"] = machine(section.device)
    section.save()
    section.case(lambda: product_rate(section, section.settings.rounds), what="bf16 product")
    section.case(lambda: product_rate(section, SUSTAINED_ROUNDS), what="bf16 product, sustained")
    section.case(lambda: copy_rate(section), what="copy")
    section.case(lambda: {"nvidia_smi": nvidia_smi()}, what="clocks after work")


def product_rate(section: Section, rounds: int) -> dict[str, Any]:
    """FLOPs per second of a bf16 product of random square matrices, and their share of the data sheet's.

    If there are more rounds than `KEPT_SAMPLES`, only the last ones count: a GPU under long load lowers its clocks.
    """
    size, device = section.settings.matrix, section.device
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    times = interleaved({"product": lambda: left @ right}, device, rounds)["product"]
    last = times["milliseconds"]["samples"][-KEPT_SAMPLES:]
    rates = [2 * size**3 / (1e-3 * milliseconds) for milliseconds in last]
    rate, peak = spread(rates), peak_flops(device)
    share = rate["median"] / peak if peak else None
    says = f"{rate['median'] / 1e12:.4g} TFLOP/s" + (f", {share:.1%} of the data sheet's" if share else "")
    return {"size": size, "flops_per_second": rate, "data_sheet": peak, "share": share, "says": says}


def copy_rate(section: Section) -> dict[str, Any]:
    """Bytes per second read and written by a copy within the device's memory."""
    size = 10**5 if section.trial else COPIED_BYTES
    source = torch.empty(size, dtype=torch.uint8, device=section.device).random_()
    target = torch.empty_like(source)
    times = interleaved({"copy": lambda: target.copy_(source)}, section.device, section.settings.rounds)["copy"]
    rate = spread(2 * size / (1e-3 * milliseconds) for milliseconds in times["milliseconds"]["samples"])
    return {"copied_bytes": size, "bytes_per_second": rate, "says": f"{rate['median'] / 1e12:.3g} TB/s"}


def peak_flops(device: torch.device) -> float | None:
    """The data sheet's dense bf16 FLOPs per second; None for a device missing in growctl's table."""
    if device.type != "cuda":
        return None
    try:
        from growctl.schedule.launch_block import known_device
    except ImportError:  # pydantic is missing; the sections that can still run have no MFU
        return None
    properties = torch.cuda.get_device_properties(device)
    known = known_device(properties.name)
    return known.bf16_flops if known else None


def machine(device: torch.device) -> dict[str, Any]:
    """Describes the device and the installed versions."""
    facts: dict[str, Any] = {
        "device": "cpu",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cores": os.cpu_count(),
        "versions": {package: _version(package) for package in PACKAGES},
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "device": properties.name,
            "memory_bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "data_sheet_bf16_flops": peak_flops(device),
            "nvidia_smi": nvidia_smi(),
        }
    return facts


def nvidia_smi() -> dict[str, str] | None:
    """Driver, clocks and power from nvidia-smi; None if it fails."""
    command = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader", "--id=0"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(zip(ASKED, (value.strip() for value in told.strip().split(",")), strict=False))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
