"""Detects bad losses and gradients, and decides on every rank alike whether to skip, roll back or stop.

DeepSpeed rejects an update whose gradient is not finite, on all ranks alike. When the loss spikes, the guard makes the
gradient non-finite in the last backward pass, so that no bad update is ever made. The policy decides what happens next.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stages.checkpoint.lineage import TrainingRecord
from stages.metrics_lines import Anomaly
from stages.spec import TrainSpec
from stages.train.skipped_data import position

MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation, in median absolute deviations."""

SMALLEST_SIGMA = 0.01
"""Nats. Without this floor, every ripple of a nearly constant loss would be a spike."""


def spike_limit(losses: Sequence[float], z: float) -> float:
    """The loss above which a step after `losses` is a spike: their median plus z robust standard deviations."""
    middle = statistics.median(losses)
    sigma = MAD_TO_SIGMA * statistics.median(abs(loss - middle) for loss in losses)
    return middle + z * max(sigma, SMALLEST_SIGMA)


class Guard:
    """Judges the updates of one attempt at a stage, and keeps their losses until the next log line.

    The spike limit changes only at log lines, when the losses are copied to the host anyway, and depends only on the
    losses so far. Checkpoints store these losses, so that a resumed attempt makes the same decisions, and those of all
    ranks since the last log line, so that the same number of ranks resumes bit for bit.
    """

    def __init__(self, spec: TrainSpec) -> None:
        self.spec = spec
        self.policy = spec.anomalies
        self.limit: float | None = None
        self.rejected = 0
        """Rejected updates in a row so far."""
        self.pending: list[Tensor] = []
        """This rank's mean losses of the updates since the last log line, float64 scalars on the device."""
        self._losses: list[float] = []

    def state(self) -> dict[str, Any]:
        """The state that a checkpoint stores, for `restore`."""
        return {"refused": self.rejected, "losses": self._losses}

    def pending_of_ranks(self) -> list[list[float]]:
        """The pending losses of all ranks, for a checkpoint. Collective."""
        if not self.pending:
            return [[]] * dist.get_world_size()
        own = torch.stack(self.pending)
        ranks = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(ranks, own)
        return torch.stack(ranks).tolist()

    def restore(self, record: TrainingRecord, device: torch.device) -> None:
        """Restores what a checkpoint stored. If the number of ranks changed, each rank gets the mean pending losses."""
        if record.guard is not None:
            self.rejected = record.guard["refused"]
            self._learn(record.guard["losses"])
        if record.pending is not None:
            losses = torch.tensor(record.pending, dtype=torch.float64)
            own = losses[dist.get_rank()] if len(losses) == dist.get_world_size() else losses.mean(0)
            self.pending = list(own.to(device).unbind())

    def learn(self, step: int, losses: Sequence[float]) -> None:
        """Learns the pending losses, as means over all ranks, at a log line; the newest is that of `step`.

        Losses from before the stage's settled step are ignored: they do not predict later ones.
        """
        self.pending = []
        settled = step - self.spec.settled_step
        if self.policy.spikes != "ignore" and settled > 0:
            self._learn(losses[-settled:])

    def _learn(self, losses: Sequence[float]) -> None:
        window = self.policy.window
        self._losses = [*self._losses, *losses][-window:]
        self.limit = spike_limit(self._losses, self.policy.spike_z) if len(self._losses) == window else None

    def judged(self, micro_loss: Tensor, mean_loss: Tensor) -> Tensor:
        """Returns the loss of a step's last micro-batch, multiplied by NaN if the step is a spike, else unchanged.

        `mean_loss` is the step's mean loss on this rank, on the device. Collective once there is a limit. Does not wait
        for the device.
        """
        if self.limit is None:
            return micro_loss
        total = mean_loss.clone()
        dist.all_reduce(total)
        factor = torch.where(total / dist.get_world_size() > self.limit, math.nan, 1.0)
        return micro_loss * factor.to(micro_loss.dtype)

    def passed(self, loss: Tensor) -> None:
        """Notes that an update with this mean loss, a float64 scalar on the device, was made."""
        self.rejected = 0
        self.pending.append(loss)

    def verdict(self, step: int, mean_loss: Tensor) -> Anomaly:
        """Decides what follows the rejected update `step` of the stage, counted from 1. Collective.

        `mean_loss` is the step's mean loss on this rank.
        """
        total = mean_loss.clone()
        dist.all_reduce(total)
        loss = (total / dist.get_world_size()).item()
        self.rejected += 1
        spike = self.limit is not None and self.limit < loss < math.inf
        wanted = self.policy.spikes if spike else self.policy.non_finite
        assert wanted != "ignore"  # then there is no limit
        action = "stop" if wanted == "skip" and self.rejected > self.policy.most else wanted
        first_step = step - 1
        if action == "rollback":
            first_step -= first_step % self.spec.checkpoint_every
        left_out = self.spec.left_out
        num_steps = position(step - 1, left_out) + 1 - position(first_step, left_out)
        return Anomaly(
            kind="spike" if spike else "non_finite",
            value=loss if math.isfinite(loss) else None,
            threshold=self.limit if spike else None,
            action=action,
            first_step=first_step,
            num_steps=num_steps,
        )

    def reason(self, step: int, anomaly: Anomaly) -> str:
        """Why the stage stops and what to try, in one sentence for the user."""
        where = f"step {step} of stage {self.spec.stage}"
        what, key = f"the gradient of {where} is not finite", "non_finite"
        if anomaly["kind"] == "spike":
            loss, limit = anomaly["value"], anomaly["threshold"]
            what, key = f"the loss of {where}, {loss:.4f}, is a spike: above {limit:.4f}", "spikes"
        if self.rejected > 1:
            what += f"; this is rejected update number {self.rejected} in a row (anomalies.most: {self.policy.most})"
        return (
            f"{what}; try a lower learning_rate.peak (now {self.spec.learning_rate.peak}) or more warm-up, or another "
            f"anomalies.{key} (now {getattr(self.policy, key)}), under another --name"
        )
