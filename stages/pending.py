"""Training losses since the last log line, which a checkpoint between two lines carries on.

Each rank sums its own. A checkpoint has every rank's sum, so that as many ranks go on with the same bits.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class PendingLoss:
    """The sum of this rank's mean losses of the steps since the last log line, float64, on the device."""

    def __init__(self, device: torch.device) -> None:
        self._sum = torch.zeros((), dtype=torch.float64, device=device)
        self.num_steps = 0

    def add(self, loss: Tensor) -> None:
        """Another step's loss, a scalar on the device. Does not wait for it."""
        self._sum += loss
        self.num_steps += 1

    def taken(self) -> Tensor:
        """Their mean, a float64 scalar on the device; the next sum begins."""
        mean = self._sum / self.num_steps
        self._sum.zero_()
        self.num_steps = 0
        return mean

    def gathered(self) -> dict[str, Any]:
        """What a checkpoint keeps, the same on every rank. Collective."""
        sums = self._sum.new_zeros(dist.get_world_size())
        sums[dist.get_rank()] = self._sum
        dist.all_reduce(sums)
        return {"steps": self.num_steps, "sums": sums.tolist()}

    def restore(self, kept: dict[str, Any] | None) -> None:
        """Goes on from what a checkpoint kept; with another number of ranks their mean is each one's."""
        if kept is None:
            return
        sums = kept["sums"]
        same = len(sums) == dist.get_world_size()
        self._sum.fill_(sums[dist.get_rank()] if same else sum(sums) / len(sums))
        self.num_steps = kept["steps"]
