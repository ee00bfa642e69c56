"""What the number of ranks demands: a batch that they can share evenly, and a core for each on a CPU."""

import os

from growctl.launch.devices import Devices
from growctl.launch.resolve import planned_devices
from growctl.schedule.batches import StageBatch, batch_key, stage_batch
from growctl.schedule.blocks import Schedule
from stages.counted import counted


def uneven_batch(schedule: Schedule, devices: int) -> str | None:
    """Why the ranks of a stage, with `devices` on each machine, cannot share the batch evenly; None if they can."""
    launch = schedule.launch
    micro = launch.micro_batch_size
    for index, stage in enumerate(schedule.stages):
        batch, nodes = stage_batch(schedule, index), launch.nodes_of(index)
        ranks = nodes * devices
        share = ranks * launch.least_micro_batch_size
        if batch.batch_size % share:
            key = batch_key(schedule, index)
            of_machines = f" ({counted(nodes, 'machine')} x {devices})" if nodes > 1 else ""
            where = f" of stage {stage.name}{of_machines}" if of_machines or key.startswith("stages.") else ""
            per_pass = "" if micro == "auto" else f" x launch.micro_batch_size {micro}"
            return _message(key, batch, share, f", for {counted(ranks, 'device')}{where}{per_pass}")
    return None


def _message(key: str, batch: StageBatch, share: int, why: str) -> str:
    """The message for a batch that is no multiple of `share` sequences, in the unit of the key that it follows from."""
    unit = batch.sequence_length if key.endswith("batch_tokens") else 1
    value, multiple = batch.batch_size * unit, share * unit
    below = value - value % multiple
    instead = f"{f'{below} or ' if below else ''}{below + multiple}"
    if key.endswith("sequence_length"):
        own = f"set {key.replace('sequence_length', 'batch_size')} to {instead}"
        return f"{key}: makes {value} sequences of a step, which must be a multiple of {share}{why}; {own}"
    return f"{key} = {value}: must be a multiple of {multiple}{why}; use {instead}"


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
