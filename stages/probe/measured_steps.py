"""What `stages.probe.time_steps` finds, and the file that it leaves it in. No torch here."""

from typing import NamedTuple

RESULT = "measured.json"
"""In the spec's directory."""


class StepMemory(NamedTuple):
    """Bytes that a rank's CUDA allocator had given out in one step, at its last micro-batch."""

    lasting_bytes: int
    """Before its forward pass: parameters, gradients and optimizer."""

    activation_bytes: int
    """More after its forward pass."""

    peak_bytes: int
    """At most, in the whole step."""


class Measured(NamedTuple):
    """What was found, medians over the counted steps."""

    micro_batch_seconds: float
    """Forward and backward of a micro-batch, but for the last one of a step."""

    last_micro_batch_seconds: float
    """The same for the last one, with the gradients' reduction and the update."""

    num_steps: int
    num_devices: int
    device: str
    memory: dict[str, int] | None
    """`StepMemory`; None on a CPU."""
