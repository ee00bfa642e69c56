"""What the probes of this package are told, and what they answer. Imports no torch."""

from model.precision import DeviceType
from model.strict import Strict

RESULT = "measured.json"
"""The file's name in the spec's directory."""


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
    """What torch finds on this machine."""

    cuda: str | None
    """The CUDA version that torch was built for."""
    hip: str | None
    """The HIP version that torch was built for, for AMD GPUs."""
    driver: str | None
    """The newest CUDA version that this machine's driver supports; None without an NVIDIA driver."""
    problem: str | None
    """Why DeepSpeed cannot be imported; None if it can, or if nobody asked."""
    devices: tuple[DeviceFacts, ...]


class StepMemory(Strict):
    """Bytes that a GPU's allocator handed out to a rank in the last micro-batch of a step."""

    lasting_bytes: int
    """Before the forward pass: parameters, gradients and optimizer."""

    activation_bytes: int
    """Added by the forward pass."""

    peak_bytes: int
    """The peak of the whole step."""


class MeasuredSteps(Strict):
    """What a few optimizer steps took: medians."""

    micro_batch_seconds: float
    """Forward and backward pass of a micro-batch, except the last one of a step."""

    last_micro_batch_seconds: float
    """Forward and backward pass of a step's last micro-batch, with the gradients' reduction and the update."""

    num_steps: int
    num_devices: int
    device: str
    memory: StepMemory | None
    """None on a CPU."""

    def step_seconds(self, num_micro_batches: int) -> float:
        """Seconds of an optimizer step with `num_micro_batches`."""
        return (num_micro_batches - 1) * self.micro_batch_seconds + self.last_micro_batch_seconds
