"""What the number of ranks demands: a batch that they can share evenly, and a core for each on a CPU."""

import os

from growctl.launch.devices import Devices
from growctl.launch.resolve import planned_devices
from growctl.schema.blocks import Schedule
from stages.counted import counted


def uneven_batch(schedule: Schedule, devices: int) -> str | None:
    """Why the ranks of a stage, with `devices` on each machine, cannot share the batch evenly; None if they can."""
    launch, batch = schedule.launch, schedule.training.batch_size
    micro = launch.micro_batch_size
    for index, stage in enumerate(schedule.stages):
        nodes = launch.nodes_of(index)
        ranks = nodes * devices
        share = ranks * launch.least_micro_batch_size
        if batch % share:
            where = f" of stage {stage.name} ({counted(nodes, 'machine')} x {devices})" if nodes > 1 else ""
            per_pass = "" if micro == "auto" else f" x launch.micro_batch_size {micro}"
            below = batch - batch % share
            return (
                f"training.batch_size = {batch}: must be a multiple of {share}, for {counted(ranks, 'device')}{where}"
                f"{per_pass}; use {f'{below} or ' if below else ''}{below + share}"
            )
    return None


def crowded_cores(schedule: Schedule, devices: Devices) -> str | None:
    """A warning, in one sentence, if the ranks of a local run on `devices` share CPU cores; else None."""
    cores = len(os.sched_getaffinity(0))
    if schedule.launch.cluster != "local" or devices.type != "cpu" or devices.per_machine <= cores:
        return None
    ranks = devices.per_machine
    return (
        f"launch.devices = {ranks}: {ranks} ranks share the {counted(cores, 'CPU core')} of this machine, which slows "
        f"all of them down; set {cores} or less, or auto."
    )


def planned_crowding(schedule: Schedule) -> list[str]:
    """The warning of `crowded_cores`, if any, for the devices that a plan of `schedule` is for."""
    if schedule.launch.devices == "auto" or schedule.launch.cluster != "local":
        return []  # without asking torch for GPUs
    crowded = crowded_cores(schedule, planned_devices(schedule))
    return [crowded] if crowded else []
