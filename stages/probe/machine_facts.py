"""The facts about a machine that `python -m stages.probe.machine` prints.

Imports no torch.
"""

from pydantic import PositiveInt

from model.precision import DeviceType
from model.strict import Strict


class DeviceFacts(Strict):
    """One device that ranks can train on: a GPU, or all of the CPU."""

    kind: DeviceType
    name: str
    memory_bytes: int
    """The GPU's memory, or the machine's for the CPU."""
    free_bytes: int | None
    """A GPU's free memory, without that of other processes; None for the CPU."""
    capability: str | None
    """A GPU's compute capability; None for the CPU."""
    fast_bf16: bool


class MachineFacts(Strict):
    """Versions and devices."""

    torch: str
    cuda: str | None
    """The CUDA version that torch was built for."""
    hip: str | None
    """The HIP version that torch was built for, for AMD GPUs."""
    driver: str | None
    """The newest CUDA version that this machine's driver supports; None without an NVIDIA driver."""
    deepspeed: str | None
    problem: str | None
    """Why DeepSpeed cannot be imported; None if it can."""
    devices: tuple[DeviceFacts, ...]


class AllReduceSpec(Strict):
    """The input of a rank."""

    directory: str
    """Where each rank writes its `rank-N.json`."""
    num_elements: PositiveInt
    """Number of float32 values to sum."""


class AllReduceResult(Strict):
    """The result of a rank."""

    backend: str
    num_ranks: int
    wrong_elements: int
    """Number of wrong sums."""
    seconds: float
    """Time of one all-reduce: the median of several."""
