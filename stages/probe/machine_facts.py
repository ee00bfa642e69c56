"""What `python -m stages.probe.machine` tells of a machine. No torch here."""

from model.precision import DeviceType
from model.strict import Strict


class DeviceFacts(Strict):
    """One device that ranks can train on: a GPU, or all of the CPU."""

    kind: DeviceType
    name: str
    memory_bytes: int
    """A GPU's own, or the machine's."""
    free_bytes: int | None
    """Of a GPU, with what others hold taken off."""
    capability: str | None
    """Compute capability of a GPU."""
    fast_bf16: bool


class MachineFacts(Strict):
    """Versions and devices."""

    torch: str
    cuda: str | None
    """The CUDA that torch was built for."""
    hip: str | None
    """The same for AMD's."""
    driver: str | None
    """The newest CUDA that the driver of this machine runs; None where there is no NVIDIA driver."""
    deepspeed: str | None
    problem: str | None
    """Why DeepSpeed cannot be imported."""
    devices: tuple[DeviceFacts, ...]
