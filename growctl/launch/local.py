"""Builds the command and the environment that start the workers on this machine."""

import os
import secrets
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from growctl.launch.machines import Launch, Machines
from model.errors import Failure
from stages.process.lifeline import STDIN, VARIABLE

FIRST_PORT, NUM_PORTS = 20_000, 12_000
"""Ports on which the ranks of this machine meet, below Linux's ephemeral ports (from 32768 on by default)."""

KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000"}
"""Makes glibc's allocator keep freed memory for the next tensors. By default it requests memory from the system for
every large tensor, and each new page costs a page fault: more than most operations on it. Other allocators ignore these
variables."""


class Local(Machines):
    """This machine."""

    def check(self, runs_dir: Path) -> None:
        """Does nothing: no other programs are needed."""

    def launch(self, spec: Path, nodes: int, attempt: int) -> Launch:
        """Starts the ranks with growctl's own launcher (growctl/launch/start_ranks.py)."""
        assert nodes == 1
        launch = local_launch(spec, self.devices, self.on_each.type == "cuda")
        return replace(launch, environment=launch.environment | dict(self.environment))


def local_launch(spec: Path, num_devices: int, gpus: bool, module: str = "stages.train.worker") -> Launch:
    """How `num_devices` workers start on this machine, each as `python -m MODULE SPEC`."""
    ranks = [str(num_devices), str(free_port()), "-m", module, str(spec)]
    command = [sys.executable, "-m", "growctl.launch.start_ranks", *ranks]
    return Launch(command, local_additions(num_devices, gpus))


def local_environment(num_devices: int, gpus: bool) -> dict[str, str]:
    """The workers' environment. All traffic uses the loopback interface; without GPUs, ranks share cores evenly."""
    return os.environ | local_additions(num_devices, gpus)


def local_additions(num_devices: int, gpus: bool) -> dict[str, str]:
    """The variables that `num_devices` workers get in addition to growctl's own environment."""
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
