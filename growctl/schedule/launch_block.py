"""The `launch` block of a schedule: machines, devices, and the hardware figures that `plan` uses.

None of it changes the results beyond rounding, so you may change all of it when you resume a run.
"""

import re
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field, NonNegativeFloat, PositiveInt, field_validator

from growctl.schedule.fields import Block, Count, Duration, FlopsPerSecond, Size
from model.config import Kernels
from model.precision import Precision
from model.strict import example
from stages.spec import Offload, ZeroStage

Device = Literal["a100-40gb", "a100-80gb", "h100", "h200", "b200", "l40s", "rtx-4090"]


class KnownDevice(NamedTuple):
    """A GPU's figures."""

    bf16_flops: float
    """Peak dense FLOPs per second in bf16."""
    fp32_flops: float
    """Peak FLOPs per second in fp32 without TF32: training multiplies in true float32, also in its Triton kernels."""
    memory_bytes: int
    source: str
    """Where its vendor publishes them."""

    def peak_flops(self, precision: Precision) -> float:
        """Peak FLOPs per second of one device in `precision`."""
        return self.bf16_flops if precision == "bf16" else self.fp32_flops


_A100 = "https://www.nvidia.com/en-us/data-center/a100/"

DEVICES: dict[str, KnownDevice] = {
    "a100-40gb": KnownDevice(312e12, 19.5e12, 40 * 10**9, _A100),
    "a100-80gb": KnownDevice(312e12, 19.5e12, 80 * 10**9, _A100),
    "h100": KnownDevice(989e12, 67e12, 80 * 10**9, "https://www.nvidia.com/en-us/data-center/h100/"),
    "h200": KnownDevice(989e12, 67e12, 141 * 10**9, "https://www.nvidia.com/en-us/data-center/h200/"),
    "b200": KnownDevice(2250e12, 75e12, 180 * 10**9, "https://www.nvidia.com/en-us/data-center/dgx-b200/"),
    "l40s": KnownDevice(362e12, 91.6e12, 48 * 10**9, "https://www.nvidia.com/en-us/data-center/l40s/"),
    "rtx-4090": KnownDevice(
        165e12,
        82.6e12,
        24 * 10**9,
        "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
    ),
}

"""The GPUs whose peak speed is known: the one table for plans, MFU and benchmarks.

The figures are those of SXM modules, or of the only form there is, without sparsity: half of what data sheets give with
it. A device that is missing here has no MFU, because one against a guessed peak would be wrong.
"""

assert DEVICES.keys() == set(get_args(Device))


def known_device(name: str) -> KnownDevice | None:
    """The device of the table whose every part is a word of the GPU's `name`; None if there is none.

    PCIe and NVL cards are slower than SXM modules, and a MIG slice is a part of one, so they count as unknown.
    """
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    if words & {"pcie", "nvl", "mig"}:
        return None
    return next((known for device, known in DEVICES.items() if set(device.split("-")) <= words), None)


def peak_flops(given: float | None, device: str, precision: Precision) -> float | None:
    """Peak FLOPs per second of one device: the schedule's `given` figure, else that of the GPU called `device`.

    None if neither is known. The device that the schedule names is not asked: it is what `plan` assumes, and training
    may run on another.
    """
    known = known_device(device)
    return given or (known and known.peak_flops(precision))


Cluster = Literal["local", "hostfile", "slurm"]


MOST_MACHINES = 10**6
Machines = Annotated[int, Field(gt=0, le=MOST_MACHINES)]
"""A number of machines, or of devices per machine."""

OptionName = Annotated[str, Field(pattern=r"^[a-z][a-z-]*$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Variable = Annotated[str, Field(pattern=r"^[^\x00]*$")]
"""The value of an environment variable, which cannot hold a NUL."""


class HardwareBlock(Block):
    """The devices that `plan` assumes. `plan` leaves a column empty rather than guess a value."""

    device: Annotated[Device | None, example("h100")] = None
    """A known device, which sets `memory` and `flops`."""
    memory: Annotated[Size | None, example("40GiB", "bytes")] = None
    """Memory of one device; by default that of `device`."""
    flops: Annotated[FlopsPerSecond | None, example("989T", "FLOPs per second")] = None
    """Peak dense FLOPs per second of one device in the training precision, for example 989T; by default that of
    `device`."""
    mfu: Annotated[float | None, Field(gt=0.0, le=1.0), example(0.4, "share of the peak")] = None
    """Share of the peak FLOPs that training without activation checkpointing reaches; `plan` assumes the same for
    recomputed FLOPs. `plan --measure` times real steps instead."""
    price_per_device_hour: Annotated[NonNegativeFloat | None, example(2.5, "any currency")] = None
    """Price of one device-hour, in any currency."""

    def peak_flops(self, precision: Precision) -> float | None:
        """Peak FLOPs per second of one device in `precision`; None if unknown."""
        if self.flops or self.device is None:
            return self.flops
        return DEVICES[self.device].peak_flops(precision)

    @property
    def memory_bytes(self) -> int | None:
        """Memory of one device in bytes; None if unknown."""
        return self.memory or (DEVICES[self.device].memory_bytes if self.device else None)


class HostfileBlock(Block):
    """Machines that share a file system (`cluster: hostfile`)."""

    path: Annotated[str, Field(min_length=1), example("/etc/growctl/hostfile")] = "hostfile"
    """Hostfile in DeepSpeed's format, with one line per machine: `name slots=8`."""
    runner: Annotated[Literal["pdsh", "openmpi"], example("openmpi")] = "pdsh"
    """How DeepSpeed reaches the machines. pdsh: pdsh over ssh. openmpi: Open MPI."""
    master_address: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$"), example("10.0.0.1")] = None
    """Address on which rank 0 listens; by default the first host of the file."""
    master_port: Annotated[int, Field(gt=0, lt=2**16), example(29501, "port number")] = 29500
    """Port number on which rank 0 listens."""


class SlurmBlock(Block):
    """Jobs of a SLURM cluster (`cluster: slurm`). All nodes must share the file system of the runs directory."""

    job: Annotated[Literal["ladder", "stage"], example("stage")] = "ladder"
    """ladder: one job for all stages. stage: one job per stage, each waiting for the one before."""
    partition: Annotated[str | None, Field(min_length=1), example("gpu")] = None
    """sbatch's --partition."""
    account: Annotated[str | None, Field(min_length=1), example("my-project")] = None
    """sbatch's --account."""
    qos: Annotated[str | None, Field(min_length=1), example("high")] = None
    """sbatch's --qos."""
    constraint: Annotated[str | None, Field(min_length=1), example("h100")] = None
    """sbatch's --constraint."""
    time_limit: Annotated[Duration, example("36h", "seconds")] = 24 * 3600
    """Time limit of one job; an unfinished run is queued again."""
    warn_before: Annotated[Duration, example("5m", "seconds")] = 120
    """Time from SLURM's warning to the time limit, in which the workers save and exit."""
    max_requeues: Annotated[int, Field(ge=0, le=10**6), example(20, "requeues")] = 100
    """Maximum requeues of one job that reaches its time limit; pre-emptions do not count."""
    array_limit: Annotated[PositiveInt | None, example(4, "runs")] = None
    """Maximum runs (of `--seeds` and `growctl sweep`) or jobs (of `growctl prepare`) at a time."""
    gpus: Annotated[bool, example(False)] = True
    """Whether to request one GPU per device. false: for machines without GPUs, or if `options` requests them (gres)."""
    cpus_per_device: Annotated[PositiveInt, example(12, "CPU cores")] = 8
    """CPU cores to request per device."""
    memory: Annotated[Size | None, example("200GiB", "bytes")] = None
    """Host memory to request per node; by default, training jobs request all of it."""
    setup: Annotated[list[str], example(["module load cuda"])] = []
    """Shell lines that each job runs first."""
    options: Annotated[dict[OptionName, str | int | bool], example({"reservation": "my-reservation"})] = {}
    """Further sbatch options by their long names. If one takes no value, set it to true: {exclusive: true}."""


class SegmentsBlock(Block):
    """Activation checkpointing in segments of several layers."""

    every: Annotated[Count, example(2, "layers")]
    """Layers in a segment. Longer segments store fewer inputs but recompute more activations at a time."""


class LaunchBlock(Block):
    """The machines that train and how they share the work. You may change this block when you resume a run."""

    cluster: Annotated[Cluster, example("slurm")] = "local"
    """local: this machine. hostfile: several machines, through DeepSpeed's launcher. slurm: SLURM jobs."""
    nodes: Annotated[Machines | Annotated[list[Machines], Field(min_length=1)], example([1, 2], "machines")] = 1
    """Number of machines; a list has one entry per stage."""
    devices: Annotated[Literal["auto"] | Machines, example(8, "ranks per machine")] = "auto"
    """Worker processes (ranks) on each machine. auto: one per GPU; without GPUs, the largest divisor of
    the batch that exceeds neither 8 nor the number of cores. With a hostfile, `auto` is its smallest number of slots.
    SLURM needs a number."""
    zero_stage: Annotated[ZeroStage, example(2)] = 1
    """DeepSpeed ZeRO stage. 1 shards the optimizer state, 2 also the gradients, 3 also the parameters."""
    offload: Annotated[Offload, example("optimizer")] = "none"
    """Where master weights and Adam's moments are kept and updated. none: on the devices. optimizer: in the host's
    memory."""
    activation_checkpointing: Annotated[Literal["none", "blocks"] | SegmentsBlock, example("blocks")] = "none"
    """Recomputing activations in the backward pass saves memory and costs one more forward pass. blocks: stores only
    the input of each layer. {every: N}: stores only that of every N-th layer. On CPUs, results stay bit-identical."""
    kernels: Annotated[Kernels, example("triton")] = "eager"
    """How the model is computed. eager: PyTorch's own operations; only these keep a resumed run bit-identical.
    compiled: torch.compile on each layer. triton: fused kernels on GPUs (`pip install 'growctl[gpu]'`)."""
    micro_batch_size: Annotated[Literal["auto"] | Count, example(4, "sequences")] = "auto"
    """Sequences per forward pass on one device. auto: as many as `plan` estimates to fit, or the device's whole share
    of the batch if its memory is unknown."""
    environment: Annotated[dict[VariableName, Variable], example({"NCCL_DEBUG": "INFO"})] = {}
    """Environment variables of the workers. Put no secrets here: the run's files store them. With a hostfile, machines
    get only a few variables of your own environment, such as OMP_NUM_THREADS."""
    grace: Annotated[Duration, example("10m", "seconds")] = 300
    """Time for workers to save when the run is stopped, before growctl kills them. If a machine of a hostfile shuts
    down, DeepSpeed's launcher kills the workers there after 30 seconds."""
    hang_timeout: Annotated[Duration, example("1h", "seconds")] = 1800
    """growctl kills and restarts workers that make no progress for this long. This must exceed the time of a step, of a
    compilation, and of writing a checkpoint file."""
    max_restarts: Annotated[int, Field(ge=0, le=1000), example(5, "restarts")] = 3
    """Maximum restarts of a stage whose workers crash or hang; a new checkpoint resets the count."""
    hostfile: HostfileBlock = HostfileBlock()
    """Settings for `cluster: hostfile`."""
    slurm: SlurmBlock = SlurmBlock()
    """Settings for `cluster: slurm`."""
    hardware: HardwareBlock = HardwareBlock()
    """The devices that `plan` assumes."""

    @property
    def least_micro_batch_size(self) -> int:
        """Sequences that a forward pass takes at least: what each device's share of a batch must be a multiple of."""
        return 1 if self.micro_batch_size == "auto" else self.micro_batch_size

    @property
    def recompute_every(self) -> int | None:
        """Blocks in each segment that the backward pass recomputes; None without activation checkpointing."""
        chosen = self.activation_checkpointing
        if isinstance(chosen, SegmentsBlock):
            return chosen.every
        return 1 if chosen == "blocks" else None

    def nodes_of(self, stage: int) -> int:
        """Machines of the stage with index `stage`."""
        return self.nodes[min(stage, len(self.nodes) - 1)] if isinstance(self.nodes, list) else self.nodes

    @field_validator("zero_stage", mode="before")
    @classmethod
    def _no_zero_stage_0(cls, value: Any) -> Any:
        if type(value) is not int or value == 0:
            advice = "ZeRO 0 saves no optimizer state that growth could read, and 1 costs no more"
            raise ValueError(f"must be 1, 2 or 3; {advice}")
        return value
