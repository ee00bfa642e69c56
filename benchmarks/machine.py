"""Describes the machine that a benchmark ran on, for its results file."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine(*packages: str) -> dict[str, Any]:
    """Processor, cores, system, and the versions of Python, torch and `packages`."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        **{package: version(package) for package in ("torch", *packages)},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
