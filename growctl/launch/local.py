"""Workers on this machine: its devices, the environment of its ranks, and the command that starts them."""

import os
import secrets
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from growctl.launch.machines import Launch, LaunchError
from model.errors import Failure
from stages.process.lifeline import STDIN, VARIABLE

MOST_CPU_RANKS = 8
"""Ranks that `auto` starts on a CPU at most; further cores become threads."""

FIRST_PORT, NUM_PORTS = 20_000, 12_000
"""Ports that ranks of this machine meet on, below those that Linux hands out (from 32768 on by default)."""

GPU_FILES = ("nvidia*", "kfd", "dxg")
"""Device files of GPUs in /dev: NVIDIA's, AMD's, and those that Windows lends to Linux."""

KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000"}
"""Has glibc's allocator keep what tensors leave for the next ones. By default it asks the system for every large one
anew, and each page of it costs a page fault: more than most operations on it. Other allocators do not know these."""


@dataclass(frozen=True)
class Local:
    """This machine."""

    devices: int
    gpus: bool
    environment: Mapping[str, str] = field(default_factory=dict)
    """`launch.environment`."""

    def check(self, runs_dir: Path) -> None:
        """All that it takes came with growctl."""

    def launch(self, spec: Path, nodes: int, attempt: int) -> Launch:
        """growctl's own launcher of ranks (growctl/launch/start_ranks.py)."""
        assert nodes == 1
        environment = local_additions(self.devices, self.gpus) | dict(self.environment)
        return Launch(local_command(spec, self.devices), environment)


def local_devices(wanted: Literal["auto"] | int, batch_size: int) -> tuple[int, bool]:
    """(ranks, whether they are GPUs). `auto` is every GPU; without one, a rank a core as far as they divide the batch.

    On a CPU, ranks wait for each other once a step, threads at every small operation: two ranks were as fast as two
    threads on a quiet machine and ten times faster on a busy one. Raises LaunchError where more GPUs are asked for than
    there are.
    """
    num_gpus = _num_gpus()
    if wanted == "auto" and num_gpus:
        return num_gpus, True
    if wanted == "auto":
        most = min(len(os.sched_getaffinity(0)), MOST_CPU_RANKS)
        return max(ranks for ranks in range(1, most + 1) if batch_size % ranks == 0), False
    if num_gpus and wanted > num_gpus:
        raise LaunchError(f"launch.devices = {wanted}: this machine has {num_gpus} GPUs")
    return wanted, num_gpus > 0


def _num_gpus() -> int:
    """GPUs that torch can use. Where there is no device file of one, torch, slow to import, need not be asked."""
    if not any(True for pattern in GPU_FILES for _ in Path("/dev").glob(pattern)):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpu_memory_bytes() -> int:
    """Memory of one of this machine's GPUs: the smallest's."""
    import torch

    return min(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))


def local_command(spec: Path, num_devices: int, module: str = "stages.train.worker") -> list[str]:
    """The command line that starts `num_devices` workers on this machine, each `python -m MODULE SPEC`."""
    ranks = [str(num_devices), str(free_port()), "-m", module, str(spec)]
    return [sys.executable, "-m", "growctl.launch.start_ranks", *ranks]


def local_environment(num_devices: int, gpus: bool) -> dict[str, str]:
    """The workers' environment. All traffic stays on the loopback; without GPUs the cores are shared out evenly."""
    return os.environ | local_additions(num_devices, gpus)


def local_additions(num_devices: int, gpus: bool) -> dict[str, str]:
    # Workers import growctl's packages, whatever lies in the directory that the user stands in.
    added = {"PYTHONSAFEPATH": "1", VARIABLE: STDIN, "GLOO_SOCKET_IFNAME": "lo"}
    if "NCCL_SOCKET_IFNAME" not in os.environ:
        added["NCCL_SOCKET_IFNAME"] = "=lo"  # that one, not all whose names begin so
    if not gpus:
        added |= {"DS_ACCELERATOR": "cpu"}
        threads = max(1, len(os.sched_getaffinity(0)) // num_devices)
        # Threads that spin for long while they wait are ruinous as soon as anything else wants a core (20 times slower
        # was seen), and threads that sleep at once pay for it at every small operation: spin briefly.
        defaults = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "20000", **KEPT_MEMORY}
        added |= {name: value for name, value in defaults.items() if name not in os.environ}
    return added


def free_port() -> int:
    """A free port of the loopback, for rank 0 to listen on a moment later.

    Not one that Linux hands out by itself, which somebody may get in that moment; drawn, so that runners on one machine
    do not choose the same.
    """
    for _ in range(NUM_PORTS):
        port = FIRST_PORT + secrets.randbelow(NUM_PORTS)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise Failure(f"no port from {FIRST_PORT} to {FIRST_PORT + NUM_PORTS - 1} is free on 127.0.0.1")
