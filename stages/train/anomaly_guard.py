"""Numbers that go wrong: which updates are refused, and what then. Every rank comes to the same answers by itself.

DeepSpeed refuses an update whose gradient is not finite, on all ranks alike. A spike of the loss is made one of those
before its last backward pass: so no bad update is ever made, and what follows is the policy's business.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from stages.spec import Action, TrainSpec
from stages.train.skipped_data import position

MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation, in median absolute deviations."""

SMALLEST_SIGMA = 0.01
"""Nats. Where the loss hardly moves, its own spread would make a spike of every ripple."""


class Anomaly(NamedTuple):
    """An update that was refused, as metrics.jsonl records it."""

    kind: Literal["non_finite", "spike"]
    value: float | None
    """The step's mean loss, nats a token; None where it is not finite."""

    threshold: float | None
    """What a spike's loss was compared with."""

    action: Action
    first_step: int
    num_steps: int
    """The data left out, in steps' worth, begins with that of the update number `first_step`, counted from 0."""


def spike_limit(losses: Sequence[float], z: float) -> float:
    """The loss from which on a step is a spike after `losses`: the median and z times a robust standard deviation."""
    middle = statistics.median(losses)
    sigma = MAD_TO_SIGMA * statistics.median(abs(loss - middle) for loss in losses)
    return middle + z * max(sigma, SMALLEST_SIGMA)


class Guard:
    """Judges the updates of one attempt at a stage.

    The limit for spikes moves at log lines only, where losses come to the host anyway, and follows from the losses up
    to there. A checkpoint has them, so that a resumed attempt decides the same.
    """

    def __init__(self, spec: TrainSpec) -> None:
        self.spec = spec
        self.policy = spec.anomalies
        self.limit: float | None = None
        self.refused = 0
        """Updates in a row, up to now."""
        self._losses: list[float] = []

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, for `restore`."""
        return {"refused": self.refused, "losses": self._losses}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Goes on from what a checkpoint kept."""
        if state is not None:
            self.refused = state["refused"]
            self._learn(state["losses"])

    def learn(self, step: int, losses: Sequence[float]) -> None:
        """Takes in the losses, means over all ranks, of the updates made since the last line, now that it is `step`.

        Until the stage has settled they say nothing of those to come.
        """
        settled = step - self.spec.settled_step
        if self.policy.spikes != "ignore" and settled > 0:
            self._learn(losses[-settled:])

    def _learn(self, losses: Sequence[float]) -> None:
        window = self.policy.window
        self._losses = [*self._losses, *losses][-window:]
        self.limit = spike_limit(self._losses, self.policy.spike_z) if len(self._losses) == window else None

    def judged(self, micro_loss: Tensor, mean_loss: Tensor) -> Tensor:
        """The loss of a step's last micro-batch, so that its gradient is not finite where the step is a spike.

        `mean_loss` is the step's, on this rank, on the device. Where it is no spike not a bit changes. Collective as
        long as there is a limit; the device is not waited for.
        """
        if self.limit is None:
            return micro_loss
        total = mean_loss.clone()
        dist.all_reduce(total)
        factor = torch.where(total / dist.get_world_size() > self.limit, math.nan, 1.0)
        return micro_loss * factor.to(micro_loss.dtype)

    def passed(self) -> None:
        """An update was made."""
        self.refused = 0

    def verdict(self, step: int, mean_loss: Tensor) -> Anomaly:
        """What becomes of the refused update that was the stage's step `step`, counted from 1. Collective.

        `mean_loss` is this rank's.
        """
        total = mean_loss.clone()
        dist.all_reduce(total)
        loss = (total / dist.get_world_size()).item()
        self.refused += 1
        spike = self.limit is not None and self.limit < loss < math.inf
        wanted = self.policy.spikes if spike else self.policy.non_finite
        assert wanted != "ignore"  # then there is no limit
        action = "stop" if wanted == "skip" and self.refused > self.policy.most else wanted
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
        """Why the stage stops, in one sentence for the user, with what to try."""
        where = f"step {step} of stage {self.spec.stage}"
        what, key = f"the gradient of {where} is not finite", "non_finite"
        if anomaly.kind == "spike":
            what, key = f"the loss of {where}, {anomaly.value:.4f}, is a spike: above {anomaly.threshold:.4f}", "spikes"
        if self.refused > 1:
            what += f", the update number {self.refused} in a row that is refused (anomalies.most: {self.policy.most})"
        return (
            f"{what}; try a lower learning_rate.peak (now {self.spec.learning_rate.peak}) or more warm-up, or another "
            f"anomalies.{key} (now {getattr(self.policy, key)}), under another --name"
        )
