"""The devices that a plan reckons with, found without torch: how many, of which kind, in which precision."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from growctl.launch.local import MOST_CPU_RANKS
from growctl.launch.machines import LaunchError
from growctl.schema.blocks import Schedule
from model.activation_memory import DeviceType, Precision

FAST_BF16_FLAGS = ("avx512_bf16", "amx_tile")
"""Flags in /proc/cpuinfo of CPUs with fast bf16, as in `stages.engine.engine.choose_precision`."""


@dataclass(frozen=True)
class PlannedDevices:
    """The devices of each machine of a schedule."""

    per_machine: int
    type: DeviceType
    note: str | None = None
    """A sentence about what the plan assumes, if the number of devices is unknown."""


def planned_devices(schedule: Schedule) -> PlannedDevices:
    """The devices of each machine of `schedule.launch`.

    For `launch.devices: auto` they are those that a run would find: this machine's GPUs, the hostfile's slots, or one
    rank per core without GPUs. If the number is unknown, it is 1 and the note says so.
    """
    launch = schedule.launch
    named = launch.hardware.device
    if launch.cluster != "local":
        return _cluster_devices(schedule)
    num_gpus = count_gpus()
    on_gpus: DeviceType = "cuda" if num_gpus or named else "cpu"
    if launch.devices != "auto":
        return PlannedDevices(launch.devices, on_gpus)
    if num_gpus:
        return PlannedDevices(num_gpus, "cuda")
    if named:
        note = f"This machine has no GPU: the plan is for one {named}. Set launch.devices for more."
        return PlannedDevices(1, "cuda", note)
    return PlannedDevices(cpu_ranks(schedule), "cpu")


def planned_precision(schedule: Schedule, device: DeviceType) -> Precision:
    """`training.precision`. For auto it is bf16 on GPUs and on CPUs with fast bf16, else fp32."""
    wanted = schedule.training.precision
    if wanted != "auto":
        return wanted
    return "bf16" if device == "cuda" or _cpu_is_fast_at_bf16() else "fp32"


def count_gpus(root: Path = Path("/")) -> int:
    """NVIDIA GPUs that this process may use."""
    found = len(list(root.glob("dev/nvidia[0-9]*"))) or len(list(root.glob("proc/driver/nvidia/gpus/*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    names = [name.strip() for name in visible.split(",")]
    # CUDA ignores everything after an invalid name.
    valid = names.index("-1") if "-1" in names else len(names)
    return min(found, sum(bool(name) for name in names[:valid]))


def cpu_ranks(schedule: Schedule) -> int:
    """Ranks that `auto` starts on a machine without GPUs: one per core, and as many as divide the micro-batches."""
    micro = schedule.launch.micro_batch_size
    micro_batches = schedule.training.batch_size // (1 if micro == "auto" else micro)
    most = min(len(os.sched_getaffinity(0)), MOST_CPU_RANKS)
    return max(ranks for ranks in range(1, most + 1) if micro_batches % ranks == 0)


def _cluster_devices(schedule: Schedule) -> PlannedDevices:
    launch = schedule.launch
    on_gpus: DeviceType = "cpu" if launch.cluster == "slurm" and not launch.slurm.gpus else "cuda"
    if launch.devices != "auto":
        return PlannedDevices(launch.devices, on_gpus)
    if launch.cluster == "hostfile":
        from growctl.launch.hostfile import hostfile_path, read_hostfile

        try:
            return PlannedDevices(min(read_hostfile(hostfile_path(launch.hostfile)).values()), on_gpus)
        except LaunchError as error:
            note = f"The plan is for one device on each machine: launch.devices is auto, and {error}."
            return PlannedDevices(1, on_gpus, note)
    note = "The plan is for one device on each machine: with launch.cluster slurm, set their number in launch.devices."
    return PlannedDevices(1, on_gpus, note)


@cache
def _cpu_is_fast_at_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return any(flag in flags for flag in FAST_BF16_FLAGS)
