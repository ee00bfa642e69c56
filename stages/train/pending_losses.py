"""Training losses since the last log line, which checkpoints carry across a restart.

Each rank keeps its own. A checkpoint stores those of all ranks, so that the same number of ranks resumes bit for bit.
"""

import torch
import torch.distributed as dist
from torch import Tensor


class PendingLosses:
    """This rank's mean losses of the updates since the last log line, float64, on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._losses: list[Tensor] = []

    @property
    def num_steps(self) -> int:
        """The number of losses."""
        return len(self._losses)

    def add(self, loss: Tensor) -> None:
        """Adds one update's loss, a float64 scalar on the device, without waiting for the device."""
        self._losses.append(loss)

    def taken(self) -> Tensor:
        """Returns all losses, (num_steps,) float64 on the device, and clears the list."""
        losses = self._stacked()
        self._losses = []
        return losses

    def gathered(self) -> list[list[float]]:
        """Returns the losses of all ranks, for a checkpoint: the same lists on every rank. Collective."""
        losses = torch.zeros(dist.get_world_size(), self.num_steps, dtype=torch.float64, device=self._device)
        losses[dist.get_rank()] = self._stacked()
        dist.all_reduce(losses)
        return losses.tolist()

    def restore(self, kept: list[list[float]] | None) -> None:
        """Restores the losses that a checkpoint stored; if the number of ranks changed, each rank gets the mean."""
        if kept is None:
            return
        losses = torch.tensor(kept, dtype=torch.float64)
        same = len(losses) == dist.get_world_size()
        own = losses[dist.get_rank()] if same else losses.mean(0)
        self._losses = list(own.to(self._device).unbind())

    def _stacked(self) -> Tensor:
        empty = torch.zeros(0, dtype=torch.float64, device=self._device)
        return torch.stack(self._losses) if self._losses else empty
