"""The resident memory of this process, as the kernel counts it."""

from contextlib import suppress
from pathlib import Path
from typing import Literal


def resident_bytes(key: Literal["VmRSS", "VmHWM"]) -> int | None:
    """Resident memory (RSS) in bytes: `VmRSS` now, `VmHWM` at its peak; None if the kernel does not say."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    return None
