"""How workers start: on this machine, under the DeepSpeed launcher, as children that die with their parent."""

import base64
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Literal

MOST_CPU_RANKS = 8
"""Ranks that `auto` starts on a CPU at most; further cores become threads."""

STOP_SECONDS = 40.0
"""Patience with a launcher that was asked to stop: it gives its own workers 30 seconds."""


def local_devices(wanted: Literal["auto"] | int, batch_size: int) -> tuple[int, bool]:
    """(ranks, whether they are GPUs). `auto` is every GPU; without one, a rank a core as far as they divide the batch.

    On a CPU, ranks wait for each other once a step, threads at every small operation: two ranks were as fast as two
    threads on a quiet machine and ten times faster on a busy one. Raises ValueError where more GPUs are asked for than
    there are.
    """
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto" and num_gpus:
        return num_gpus, True
    if wanted == "auto":
        most = min(len(os.sched_getaffinity(0)), MOST_CPU_RANKS)
        return max(ranks for ranks in range(1, most + 1) if batch_size % ranks == 0), False
    if num_gpus and wanted > num_gpus:
        raise ValueError(f"launch.devices = {wanted}: this machine has {num_gpus} GPUs")
    return wanted, num_gpus > 0


def local_command(spec: Path, num_devices: int, module: str = "stages.train") -> list[str]:
    """The DeepSpeed launcher's command line for `num_devices` workers on this machine, each `python -m MODULE SPEC`.

    The per-node launcher is called directly: the `deepspeed` script before it would only look for host files.
    """
    world = base64.urlsafe_b64encode(json.dumps({"localhost": _device_ids(num_devices)}).encode()).decode()
    launcher = [sys.executable, "-m", "deepspeed.launcher.launch", f"--world_info={world}"]
    address = ["--master_addr=127.0.0.1", f"--master_port={_free_port()}"]
    return [*launcher, *address, "--no_local_rank", "--module", module, str(spec)]


def local_environment(num_devices: int, gpus: bool) -> dict[str, str]:
    """The workers' environment. Without GPUs the cores are shared out evenly and all traffic stays on the loopback."""
    # Workers import growctl's packages, whatever lies in the directory that the user stands in.
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    if not gpus:
        threads = max(1, len(os.sched_getaffinity(0)) // num_devices)
        environment |= {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
        environment.setdefault("OMP_NUM_THREADS", str(threads))
        # Threads that spin for long while they wait are ruinous as soon as anything else wants a core (20 times slower
        # was seen), and threads that sleep at once pay for it at every small operation: spin briefly.
        environment.setdefault("GOMP_SPINCOUNT", "20000")
    return environment


def start_workers(
    spec: Path, log: Path, num_devices: int, gpus: bool, module: str = "stages.train"
) -> subprocess.Popen[bytes]:
    """Starts the launcher with all output appended to `log`, in its own session: Ctrl-C reaches only us.

    Its standard input, which the workers inherit, is a pipe that nobody writes to: it ends when this process does, and
    with it the workers, however this process dies.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            local_command(spec, num_devices, module),
            env=local_environment(num_devices, gpus),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop_workers(process: subprocess.Popen[bytes]) -> None:
    """Ends the launcher and with it the workers; returns once it is gone."""
    if process.stdin:
        process.stdin.close()
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _device_ids(num_devices: int) -> list[str]:
    """The first devices that CUDA_VISIBLE_DEVICES leaves us, which the launcher would else overwrite."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    mine = [name.strip() for name in visible.split(",") if name.strip()]
    return mine[:num_devices] if len(mine) >= num_devices else [str(i) for i in range(num_devices)]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
