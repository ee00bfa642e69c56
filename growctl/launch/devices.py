"""Chooses the devices, the number of ranks and the precision of this machine.

`plan`, `run` and `--dry-run` all ask here, so they agree.

If `/dev` has no device file of a GPU, the answer is the CPU, without importing torch.
Otherwise torch answers, in a separate process with the workers' environment: only torch knows what workers will see,
NVIDIA's GPUs or AMD's, through CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from growctl.launch.machines import Devices, LaunchError
from stages.counted import counted
from stages.engine.devices import cpu_is_fast_at_bf16
from stages.probe.records import DeviceFacts, MachineFacts

DEVICE_FILES = Path("/dev")
GPU_FILES = ("nvidia*", "kfd", "dxg")
"""Device files of GPUs in /dev: NVIDIA's, AMD's, and those of WSL."""

MOST_CPU_RANKS = 8
"""The most ranks that `auto` starts on a CPU; further cores are used by threads."""

PROBE_SECONDS = 120.0
"""Timeout of importing torch, which takes minutes from a slow network disk."""


def local_devices(
    wanted: Literal["auto"] | int, batch_size: int, environment: Mapping[str, str] | None = None
) -> Devices:
    """The devices that ranks of this machine use, with `environment` (`launch.environment`) added to this process's.

    `auto` is every GPU. Without GPUs it is one rank per core, up to MOST_CPU_RANKS and to the largest number that
    divides the batch. On a CPU, ranks wait for each other once per step, threads at every small operation: two ranks
    were as fast as two threads on an idle machine and ten times faster on a busy one. Raises LaunchError if there are
    fewer GPUs than wanted, or if torch fails.
    """
    gpus = gpus_here(environment)
    if gpus:
        if wanted != "auto" and wanted > len(gpus):
            raise LaunchError(f"launch.devices = {wanted}: this machine has {counted(len(gpus), 'GPU')}")
        used = gpus[: None if wanted == "auto" else wanted]
        memory = min(gpu.memory_bytes for gpu in used)
        return Devices(len(used), "cuda", all(gpu.fast_bf16 for gpu in used), memory)
    most = min(len(os.sched_getaffinity(0)), MOST_CPU_RANKS)
    auto = max(ranks for ranks in range(1, most + 1) if batch_size % ranks == 0)
    return Devices(auto if wanted == "auto" else wanted, "cpu", cpu_is_fast_at_bf16())


def gpus_here(environment: Mapping[str, str] | None = None) -> tuple[DeviceFacts, ...]:
    """The GPUs that a worker started here would use, with `environment` added to this process's; empty on a CPU.

    Raises LaunchError if there may be GPUs but torch fails.
    """
    whole = os.environ | (environment or {})
    if not gpus_possible(whole):
        return ()
    answer = ask_torch(tuple(sorted(whole.items())))
    if isinstance(answer, str):
        raise LaunchError(
            f"torch cannot list this machine's GPUs: {answer}; run growctl doctor, or set DS_ACCELERATOR=cpu to train "
            "without them"
        )
    return tuple(device for device in answer.devices if device.kind == "cuda")


def gpus_possible(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether workers with this environment could find a GPU, as far as can be told without torch."""
    if environment.get("DS_ACCELERATOR") == "cpu":
        return False
    return any(True for pattern in GPU_FILES for _ in DEVICE_FILES.glob(pattern))


@cache
def ask_torch(environment: tuple[tuple[str, str], ...], *options: str) -> MachineFacts | str:
    """What torch finds in a process with this environment; if it fails, the reason, which is kept too: a torch that
    hangs is asked once. `options` are those of stages/probe/machine.py."""
    command = [sys.executable, "-m", "stages.probe.machine", *options]
    try:
        result = subprocess.run(
            command,
            env=dict(environment) | {"PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    last_lines = [text.strip().rpartition("\n")[2] for text in (result.stderr, result.stdout)]
    if result.returncode:
        return last_lines[0] or f"exit code {result.returncode}"
    try:
        return MachineFacts.model_validate_json(last_lines[1])
    except ValueError:
        return f"its answer was {last_lines[1][:200]!r}"
