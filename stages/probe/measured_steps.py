"""The results of `stages.probe.time_steps`, and their file.

Imports no torch.
"""

from model.strict import Strict

RESULT = "measured.json"
"""The file's name in the spec's directory."""


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
