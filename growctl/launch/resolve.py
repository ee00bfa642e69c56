"""Resolves a schedule's `launch` block to machines and the devices on each."""

from growctl.launch.devices import Devices, local_devices
from growctl.launch.hostfile import hostfile_machines
from growctl.launch.local import Local
from growctl.launch.machines import LaunchError, Machines
from growctl.launch.slurm import SlurmMachines
from growctl.schedule.batches import shared_batch
from growctl.schedule.blocks import Schedule
from stages.counted import counted
from stages.engine.precision import cpu_is_fast_at_bf16


def machines_of(schedule: Schedule) -> Machines:
    """The machines that a schedule's `launch` names. Raises LaunchError if they do not have what it requires.

    For `cluster: slurm` they are the machines of the job that this process runs in.
    """
    launch = schedule.launch
    nodes = max(launch.nodes_of(index) for index in range(len(schedule.stages)))
    if launch.cluster == "slurm":
        return SlurmMachines.of(launch)
    if launch.cluster == "hostfile":
        return hostfile_machines(launch, nodes)
    if nodes > 1:
        raise LaunchError(f"launch.nodes = {nodes}: launch.cluster = 'local' is one machine; use hostfile or slurm")
    return Local(schedule_devices_here(schedule), launch.environment)


def run_devices(schedule: Schedule, machines: Machines) -> Devices:
    """The devices on each of `machines` that a run of `schedule` starts on. Those of other machines are assumed."""
    return machines.found if isinstance(machines, Local) else _assumed_devices(schedule, machines.devices)


def planned_devices(schedule: Schedule) -> Devices:
    """The devices that a plan of `schedule` is for: those that a run uses on each machine, from `machines_of`.

    If the run could not start, the plan assumes `launch.devices`, or one device, and the note gives the reason. It does
    the same if `launch.hardware` names a GPU but this machine has none.
    """
    launch = schedule.launch
    assumed = 1 if launch.devices == "auto" else launch.devices
    try:
        if launch.cluster != "local":
            return run_devices(schedule, machines_of(schedule))
        found = schedule_devices_here(schedule)
    except LaunchError as error:
        devices = counted(assumed, "device")
        reason = str(error).removesuffix(".")
        return _assumed_devices(schedule, assumed, f"The plan is for {devices} on each machine: {reason}.")
    if found.type == "cuda" or not launch.hardware.device:
        return found
    note = f"This machine has no GPU: the plan is for one {launch.hardware.device}. Set launch.devices for more."
    return _assumed_devices(schedule, assumed, note if launch.devices == "auto" else None)


def _assumed_devices(schedule: Schedule, per_machine: int, note: str | None = None) -> Devices:
    """Assumed devices of other machines: GPUs that are fast at bf16, like every device that `launch.hardware` can name.

    Without GPUs (`slurm.gpus: false`), assumes CPUs like this machine's.
    """
    launch = schedule.launch
    if launch.cluster == "slurm" and not launch.slurm.gpus:
        return Devices(per_machine, "cpu", cpu_is_fast_at_bf16(), note=note)
    return Devices(per_machine, "cuda", fast_bf16=True, note=note)


def schedule_devices_here(schedule: Schedule) -> Devices:
    """The devices that the ranks of a local run of `schedule` use on this machine.

    Raises LaunchError as `local_devices` does.
    """
    launch = schedule.launch
    micro_batches = shared_batch(schedule) // launch.least_micro_batch_size
    return local_devices(launch.devices, micro_batches, launch.environment)
