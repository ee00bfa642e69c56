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
"""The most ranks that `auto` starts on a CPU; further cores are used by threads."""

FIRST_PORT, NUM_PORTS = 20_000, 12_000
"""Ports on which the ranks of this machine meet, below Linux's ephemeral ports (from 32768 on by default)."""

GPU_FILES = ("nvidia*", "kfd", "dxg")
"""Device files of GPUs in /dev: NVIDIA's, AMD's, and those of WSL."""

KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000"}
"""Makes glibc's allocator keep freed memory for the next tensors. By default it requests memory from the system for
every large tensor, and each new page costs a page fault: more than most operations on it. Other allocators ignore these
variables."""


@dataclass(frozen=True)
class Local:
    """This machine."""

    devices: int
    gpus: bool
    environment: Mapping[str, str] = field(default_factory=dict)
    """`launch.environment`."""

    def check(self, runs_dir: Path) -> None:
        """Does nothing: no other programs are needed."""

    def launch(self, spec: Path, nodes: int, attempt: int) -> Launch:
        """Starts the ranks with growctl's own launcher (growctl/launch/start_ranks.py)."""
        assert nodes == 1
        environment = local_additions(self.devices, self.gpus) | dict(self.environment)
        return Launch(local_command(spec, self.devices), environment)


def local_devices(wanted: Literal["auto"] | int, batch_size: int) -> tuple[int, bool]:
    """Returns (number of ranks, whether they use GPUs).

    `auto` is every GPU. Without GPUs it is one rank per core, up to MOST_CPU_RANKS and to the largest number that
    divides the batch. On a CPU, ranks wait for each other once per step, threads at every small operation: two ranks
    were as fast as two threads on an idle machine and ten times faster on a busy one. Raises LaunchError if `wanted`
    exceeds the number of GPUs.
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
    """The number of GPUs that torch can use. Without a GPU's device file, torch, slow to import, is not imported."""
    if not any(True for pattern in GPU_FILES for _ in Path("/dev").glob(pattern)):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpu_memory_bytes() -> int:
    """The memory of this machine's smallest GPU, in bytes."""
    import torch

    return min(torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count()))


def local_command(spec: Path, num_devices: int, module: str = "stages.train.worker") -> list[str]:
    """The command line that starts `num_devices` workers on this machine, each `python -m MODULE SPEC`."""
    ranks = [str(num_devices), str(free_port()), "-m", module, str(spec)]
    return [sys.executable, "-m", "growctl.launch.start_ranks", *ranks]


def local_environment(num_devices: int, gpus: bool) -> dict[str, str]:
    """The workers' environment. All traffic uses the loopback interface; without GPUs, ranks share cores evenly."""
    return os.environ | local_additions(num_devices, gpus)


def local_additions(num_devices: int, gpus: bool) -> dict[str, str]:
    # Workers must import growctl's packages, whatever the working directory contains.
    added = {"PYTHONSAFEPATH": "1", VARIABLE: STDIN, "GLOO_SOCKET_IFNAME": "lo"}
    if "NCCL_SOCKET_IFNAME" not in os.environ:
        added["NCCL_SOCKET_IFNAME"] = "=lo"  # "=" means this name, not all names with this prefix
    if not gpus:
        added |= {"DS_ACCELERATOR": "cpu"}
        threads = max(1, len(os.sched_getaffinity(0)) // num_devices)
        # Waiting threads that spin for long make training up to 20 times slower as soon as another process needs a
        # core. Threads that sleep at once slow down every small operation. So let them spin briefly.
        defaults = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "20000", **KEPT_MEMORY}
        added |= {name: value for name, value in defaults.items() if name not in os.environ}
    return added


def free_port() -> int:
    """A free port of the loopback interface, for rank 0 to listen on a moment later.

    It is not an ephemeral port, because Linux may assign such a port to another process in that moment. It is random,
    so that runners on the same machine do not choose the same one.
    """
    for _ in range(NUM_PORTS):
        port = FIRST_PORT + secrets.randbelow(NUM_PORTS)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise Failure(f"no port from {FIRST_PORT} to {FIRST_PORT + NUM_PORTS - 1} is free on 127.0.0.1")
