"""The `launch:` block of a schedule: how the work is laid on machines, and what `plan` reckons with.

None of it changes what is computed but for rounding, so all of it may change between a run and its resumption.
"""

from contextlib import suppress
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, ConfigDict, Field, NonNegativeFloat, PositiveInt, field_validator

from growctl.schema.quantities import Count, Duration, FlopsPerSecond, Size, parse_count
from model.config import Kernels
from model.precision import Precision
from model.strict import Strict
from stages.spec import Offload, ZeroStage

Cluster = Literal["local", "hostfile", "slurm"]
Device = Literal["a100-40gb", "a100-80gb", "h100", "h200", "b200", "l40s", "rtx-4090"]


class KnownDevice(NamedTuple):
    """A GPU by its maker's data sheet (SXM forms; figures that the sheets give with sparsity are halved)."""

    bf16_flops: float
    """Peak dense FLOPs a second in bf16."""
    fp32_flops: float
    """The same in fp32 without TF32: training multiplies in true float32, also in its Triton kernels."""
    memory_bytes: int


DEVICES: dict[str, KnownDevice] = {
    "a100-40gb": KnownDevice(312e12, 19.5e12, 40 * 10**9),
    "a100-80gb": KnownDevice(312e12, 19.5e12, 80 * 10**9),
    "h100": KnownDevice(989e12, 67e12, 80 * 10**9),
    "h200": KnownDevice(989e12, 67e12, 141 * 10**9),
    "b200": KnownDevice(2250e12, 75e12, 180 * 10**9),
    "l40s": KnownDevice(362e12, 91.6e12, 48 * 10**9),
    "rtx-4090": KnownDevice(165e12, 82.6e12, 24 * 10**9),
}

MOST_MACHINES = 10**6

assert DEVICES.keys() == set(get_args(Device))


class Block(Strict):
    """A block of keys: frozen, strict, no key beside its own."""

    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True)


def _no_more_than_exist(number: Any) -> Any:
    """Machines, or devices of one; of as many as nobody has, no time or price could be reckoned."""
    if any(type(each) is int and each > MOST_MACHINES for each in (number if isinstance(number, list) else [number])):
        raise ValueError(f"must be {MOST_MACHINES} or less")
    return number


def _text_or_number(value: Any) -> Any:
    if not isinstance(value, str | int):  # a bool is an int
        raise ValueError("must be text, a whole number, true or false")
    return value


Option = Annotated[str | int | bool, BeforeValidator(_text_or_number, json_schema_input_type=str | int | bool)]
"""What follows an option of a command; true: nothing does."""


def _no_nul(value: Any) -> Any:
    if isinstance(value, str) and "\0" in value:
        raise ValueError("must not hold a NUL character, which no environment can")
    return value


Variable = Annotated[str, BeforeValidator(_no_nul, json_schema_input_type=str)]
"""What an environment variable may hold."""


class HardwareBlock(Block):
    """What `plan` reckons with. What is not given is not guessed: `plan` then leaves the column empty."""

    device: Device | None = None
    """A known device, which gives memory and flops."""
    memory: Size | None = None
    """Memory of one device."""
    flops: FlopsPerSecond | None = None
    """Peak FLOPs a second of one device, in the training precision: 989T."""
    mfu: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Share of the peak that training reaches; `plan --measure` measures it on this machine instead."""
    price_per_device_hour: NonNegativeFloat | None = None
    """Money, in whatever currency you think in."""

    def peak_flops(self, precision: Precision) -> float | None:
        """FLOPs a second of one device in that precision, where known."""
        if self.flops or self.device is None:
            return self.flops
        known = DEVICES[self.device]
        return known.bf16_flops if precision == "bf16" else known.fp32_flops

    @property
    def memory_bytes(self) -> int | None:
        """Memory of one device, where known."""
        return self.memory or (DEVICES[self.device].memory_bytes if self.device else None)


class HostfileBlock(Block):
    """Several machines that share a file system, reached through DeepSpeed's own runners (`cluster: hostfile`)."""

    path: str = Field(default="hostfile", min_length=1)
    """DeepSpeed's form: a line a host, `name slots=8`."""
    runner: Literal["pdsh", "openmpi"] = "pdsh"
    master_address: str | None = Field(default=None, min_length=1)
    """Where rank 0 listens; by default the first host of the file."""
    master_port: Annotated[int, Field(gt=0, lt=2**16)] = 29500


class SlurmBlock(Block):
    """Jobs of a SLURM cluster (`cluster: slurm`). The runs directory lies on a file system that all nodes see."""

    job: Literal["ladder", "stage"] = "ladder"
    """One job for a whole run, or one for each stage, each behind the one before."""
    partition: str | None = Field(default=None, min_length=1)
    account: str | None = Field(default=None, min_length=1)
    qos: str | None = Field(default=None, min_length=1)
    constraint: str | None = Field(default=None, min_length=1)
    time_limit: Duration = 24 * 3600
    """Of one job; a run that is not done by then is put into the queue again."""
    warn_before: Duration = 120
    """How long before the end of the time SLURM warns the job, which then stops and queues again."""
    max_requeues: Annotated[int, Field(ge=0, le=10**6)] = 100
    """Times that one job may run out of its time; pre-emption is not counted."""
    gpus: bool = True
    """Asks for a GPU a device. false: machines without; or `options` ask in another way (gres)."""
    cpus_per_device: PositiveInt = 8
    memory: Size | None = None
    """Host memory a node; by default all of it."""
    setup: list[str] = []
    """Shell lines before the job: modules, environments."""
    options: dict[Annotated[str, Field(pattern=r"^[a-z][a-z-]*$")], Option] = {}
    """Further options of sbatch by their long names: {reservation: name, exclusive: true}."""


class LaunchBlock(Block):
    """How the work is laid on machines. May change between a run and its resumption."""

    cluster: Cluster = "local"
    """local: this machine. hostfile: several, through DeepSpeed's runners. slurm: jobs in a queue."""
    nodes: PositiveInt | list[PositiveInt] = 1
    """Machines; a list has one entry a stage."""
    devices: Literal["auto"] | PositiveInt = "auto"
    """Ranks on each machine. auto: every GPU; without a GPU a rank a core, 8 at most, that divide the batch."""
    zero_stage: ZeroStage = 1
    """DeepSpeed ZeRO: 1 shards optimizer state, 2 gradients too, 3 parameters too."""
    offload: Offload = "none"
    """optimizer: master weights and Adam's moments live, and are updated, in the host's memory."""
    kernels: Kernels = "eager"
    """How the model is computed. eager: operator by operator, the only way that a resumed run ends in the same bits.
    compiled: each block by torch.compile. triton: fused kernels, on GPUs, with `pip install 'growctl[gpu]'`."""
    micro_batch_size: Literal["auto"] | PositiveInt = "auto"
    """Sequences a forward pass on one device. auto: as many as fit by `plan`'s reckoning where the device's memory is
    known, else as many as a step gives it."""
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Variable] = {}
    """Variables that the workers get, on every machine. No place for secrets: the run's files keep them."""
    grace: Duration = 300
    """How long the workers may take to save when the run is stopped; then they are ended."""
    hang_timeout: Duration = 1800
    """Workers that do nothing for so long are ended and started again: more than a step, a compilation or one file of
    a checkpoint takes."""
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    """Times in a row, without a new checkpoint in between, that a stage is started again after its workers crashed or
    hung."""
    hostfile: HostfileBlock = HostfileBlock()
    slurm: SlurmBlock = SlurmBlock()
    hardware: HardwareBlock = HardwareBlock()

    @property
    def least_micro_batch_size(self) -> int:
        """Sequences that a forward pass takes at least: what each device's share of a batch must be a multiple of."""
        return 1 if self.micro_batch_size == "auto" else self.micro_batch_size

    def nodes_of(self, stage: int) -> int:
        """Machines of the stage of that index."""
        return self.nodes[min(stage, len(self.nodes) - 1)] if isinstance(self.nodes, list) else self.nodes

    @field_validator("nodes", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        entries = value if isinstance(value, list) else [value]
        if not entries or any(type(entry) is not int or entry < 1 for entry in entries):
            raise ValueError("must be a number of machines, 1 or more, or a list with one for each stage")
        return _no_more_than_exist(value)

    @field_validator("devices", mode="before")
    @classmethod
    def _auto_or_a_number(cls, value: Any) -> Any:
        if value == "auto" or (type(value) is int and value > 0):
            return _no_more_than_exist(value)
        raise ValueError("must be auto, or a whole number above 0")

    @field_validator("micro_batch_size", mode="before", json_schema_input_type=Literal["auto"] | Count | None)
    @classmethod
    def _auto_or_a_count(cls, value: Any) -> Any:
        if value in (None, "auto"):
            return "auto"
        with suppress(ValueError):
            if (number := parse_count(value)) > 0:
                return number
        raise ValueError("must be auto, or a whole number above 0")

    @field_validator("zero_stage", mode="before")
    @classmethod
    def _no_zero_stage_0(cls, value: Any) -> Any:
        if type(value) is int and value == 0:
            raise ValueError("ZeRO 0 keeps no optimizer state that growth could read; use 1, which costs no more")
        if type(value) is not int or not 1 <= value <= 3:
            raise ValueError("must be 1, 2 or 3")
        return value
