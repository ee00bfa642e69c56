"""The results of `stages.probe.time_steps`, and their file.

Imports no torch.
"""

from typing import NamedTuple

RESULT = "measured.json"
"""The file's name in the spec's directory."""


class StepMemory(NamedTuple):
    """Bytes allocated by a rank's CUDA allocator in the last micro-batch of a step."""

    lasting_bytes: int
    """Before the forward pass: parameters, gradients and optimizer."""

    activation_bytes: int
    """Added by the forward pass."""

    peak_bytes: int
    """The peak of the whole step."""


class Measured(NamedTuple):
    """The result: medians over the timed steps."""

    micro_batch_seconds: float
    """Forward and backward pass of a micro-batch, except the last one of a step."""

    last_micro_batch_seconds: float
    """Time of the last one, which includes the gradients' reduction and the update."""

    num_steps: int
    num_devices: int
    device: str
    memory: dict[str, int] | None
    """`StepMemory`; None on a CPU."""
