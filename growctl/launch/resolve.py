"""What a schedule's `launch` block means: machines, the devices on each, and what the number of ranks demands."""

from growctl.launch.devices import local_devices
from growctl.launch.hostfile import hostfile_machines
from growctl.launch.local import Local
from growctl.launch.machines import Devices, LaunchError, Machines, assumed_devices
from growctl.launch.slurm import SlurmMachines
from growctl.schedule.blocks import Schedule
from stages.counted import counted


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
    return Local(schedule_devices_here(schedule), environment=launch.environment)


def planned_devices(schedule: Schedule) -> Devices:
    """The devices that a plan of `schedule` is for: those that a run uses on each machine, from `machines_of`.

    If the run could not start, the plan assumes `launch.devices`, or one device, and the note gives the reason. It does
    the same if `launch.hardware` names a GPU but this machine has none.
    """
    launch = schedule.launch
    assumed = 1 if launch.devices == "auto" else launch.devices
    try:
        if launch.cluster != "local":
            return machines_of(schedule).on_each
        here = schedule_devices_here(schedule)
    except LaunchError as error:
        devices = counted(assumed, "device")
        reason = str(error).removesuffix(".")
        return assumed_devices(launch, assumed, f"The plan is for {devices} on each machine: {reason}.")
    if here.type == "cuda" or not launch.hardware.device:
        return here
    note = f"This machine has no GPU: the plan is for one {launch.hardware.device}. Set launch.devices for more."
    return assumed_devices(launch, assumed, note if launch.devices == "auto" else None)


def schedule_devices_here(schedule: Schedule) -> Devices:
    """The devices that the ranks of a local run of `schedule` use on this machine.

    Raises LaunchError as `local_devices` does.
    """
    launch = schedule.launch
    micro_batches = schedule.shared_batch // launch.least_micro_batch_size
    return local_devices(launch.devices, micro_batches, launch.environment)


def uneven_batch(schedule: Schedule, devices: int) -> str | None:
    """Why the ranks of a stage, with `devices` on each machine, cannot share the batch evenly; None if they can."""
    launch = schedule.launch
    micro = launch.micro_batch_size
    for index, stage in enumerate(schedule.stages):
        batch, nodes = schedule.batch_of(index), launch.nodes_of(index)
        ranks = nodes * devices
        share = ranks * launch.least_micro_batch_size
        if batch.batch_size % share:
            key = schedule.batch_key(index)
            of_machines = f" ({counted(nodes, 'machine')} x {devices})" if nodes > 1 else ""
            where = f" of stage {stage.name}{of_machines}" if of_machines or key.startswith("stages.") else ""
            per_pass = "" if micro == "auto" else f" x launch.micro_batch_size {micro}"
            return (
                f"{key}: makes {batch.batch_size} sequences of a step, which must be a multiple of {share}, for "
                f"{counted(ranks, 'device')}{where}{per_pass}"
            )
    return None
