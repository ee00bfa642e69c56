"""Training losses since the last log line, which a checkpoint between two lines carries on.

Each rank has its own. A checkpoint has every rank's, so that as many ranks go on with the same bits.
"""

import torch
import torch.distributed as dist
from torch import Tensor


class PendingLosses:
    """This rank's mean loss of each update since the last log line, float64, on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._losses: list[Tensor] = []

    @property
    def num_steps(self) -> int:
        """How many they are."""
        return len(self._losses)

    def add(self, loss: Tensor) -> None:
        """Another update's loss, a float64 scalar on the device. Does not wait for it."""
        self._losses.append(loss)

    def taken(self) -> Tensor:
        """All of them, (num_steps,) float64 on the device; the next ones are gathered anew."""
        losses = self._stacked()
        self._losses = []
        return losses

    def gathered(self) -> list[list[float]]:
        """What a checkpoint keeps, each rank's, the same on every rank. Collective."""
        losses = torch.zeros(dist.get_world_size(), self.num_steps, dtype=torch.float64, device=self._device)
        losses[dist.get_rank()] = self._stacked()
        dist.all_reduce(losses)
        return losses.tolist()

    def restore(self, kept: list[list[float]] | None) -> None:
        """Goes on from what a checkpoint kept; with another number of ranks their means are each one's."""
        if kept is None:
            return
        losses = torch.tensor(kept, dtype=torch.float64)
        same = len(losses) == dist.get_world_size()
        own = losses[dist.get_rank()] if same else losses.mean(0)
        self._losses = list(own.to(self._device).unbind())

    def _stacked(self) -> Tensor:
        empty = torch.zeros(0, dtype=torch.float64, device=self._device)
        return torch.stack(self._losses) if self._losses else empty
