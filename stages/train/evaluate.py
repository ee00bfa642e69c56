"""Computes the validation loss over a fixed set of sequences, split over the ranks.

Shapes: B batch, T sequence, S sources.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from stages.data.evaluation_windows import EvaluationWindows, WindowsOfSource
from stages.data.read_ahead import EXPECTED_SAMPLES, read_ahead


class SourceLoss(NamedTuple):
    """The result for one source of a mixture."""

    loss: float
    bits_per_byte: float
    num_tokens: int


class Evaluation(NamedTuple):
    """The result of one pass over validation text."""

    loss: float
    """Mean cross-entropy, nats per token; of a mixture, the mean of the sources' losses, by base weights."""

    perplexity: float
    """exp(loss); infinity if that overflows."""

    bits_per_byte: float
    """loss / ln 2 x tokens / bytes, with the token and UTF-8 byte counts of the whole split; of a mixture, the mean of
    the sources' numbers, by base weights."""

    num_tokens: int
    """Number of validation tokens predicted."""

    by_source: dict[str, SourceLoss] | None
    """The results by the name of the source; None for a dataset that is not a mixture."""


class Measured(NamedTuple):
    """What an evaluation of a stage finds."""

    result: Evaluation
    """At the context of the ladder's last stage, so that the losses of all stages compare."""

    own: Evaluation | None
    """At the stage's own context; None if that is the same."""

    def record(self) -> dict[str, Any]:
        """The numbers as metrics.jsonl has them."""
        own = {"own_context_loss": self.own.loss, "own_context_tokens": self.own.num_tokens} if self.own else {}
        return self.result._asdict() | own

    def training_record(self) -> dict[str, Any]:
        """The numbers as fields of a finished stage's TrainingRecord."""
        return {
            "validation_loss": self.result.loss,
            "validation_tokens": self.result.num_tokens,
            "own_context_loss": self.own.loss if self.own else None,
        }


@torch.no_grad()
def evaluate(
    loss_of: Callable[[Tensor, Tensor], Tensor],
    windows: EvaluationWindows,
    batch_size: int,
    device: torch.device,
) -> Evaluation:
    """Runs `loss_of(input_ids_BT, targets_BT)` (mean nats) over all `windows`, `batch_size` sequences at a time.

    Collective: each rank takes every world-size-th batch. All ranks run the same number of batches, as ZeRO-3 requires;
    a rank without further batches repeats the split's first and does not count it. Sums are float64, by source.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    every = windows.batches(batch_size)
    mine = every[rank::world_size]
    num_batches = math.ceil(len(every) / world_size)
    ranges = [*mine, *[every[0]] * (num_batches - len(mine))]
    totals_S2 = torch.zeros(len(windows.sources), 2, dtype=torch.float64, device=device)
    batches = read_ahead(
        lambda number: windows.batch(*ranges[number][1:]),
        range(num_batches),
        device,
        expect=lambda number: windows.expect(*ranges[number][1:]),
        num_expected=max(1, EXPECTED_SAMPLES // batch_size),
    )
    with closing(batches):
        for number, (input_ids_BT, targets_BT) in enumerate(batches):
            loss = loss_of(input_ids_BT, targets_BT)
            if number < len(mine):
                num_tokens = targets_BT.numel()
                source = mine[number][0]
                totals_S2[source, 0] += loss.double() * num_tokens
                totals_S2[source, 1] += num_tokens
    dist.all_reduce(totals_S2)
    return _evaluation(totals_S2.tolist(), windows.sources)


def _evaluation(totals: Sequence[tuple[float, float]], sources: Sequence[WindowsOfSource]) -> Evaluation:
    """The result, from the sum of losses and the number of tokens of each source."""
    found = []
    for (total, num_tokens), source in zip(totals, sources, strict=True):
        loss = total / num_tokens
        found.append(SourceLoss(loss, loss / math.log(2) / source.bytes_per_token, int(num_tokens)))
    mean = sum(source.weight * each.loss for source, each in zip(sources, found, strict=True))
    return Evaluation(
        loss=mean,
        perplexity=math.exp(mean) if mean < 700 else math.inf,
        bits_per_byte=sum(source.weight * each.bits_per_byte for source, each in zip(sources, found, strict=True)),
        num_tokens=sum(each.num_tokens for each in found),
        by_source={source.name: each for source, each in zip(sources, found, strict=True) if source.name} or None,
    )
