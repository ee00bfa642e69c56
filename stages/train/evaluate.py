"""Computes the validation loss over a fixed set of sequences, split over the ranks.

Shapes: B batch, T sequence.
"""

import math
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from stages.data.dataset import EvaluationWindows
from stages.data.read_ahead import read_ahead


class Evaluation(NamedTuple):
    """The result of one pass over validation text."""

    loss: float
    """Mean cross-entropy, nats per token."""

    perplexity: float
    """exp(loss); infinity if that overflows."""

    bits_per_byte: float
    """loss / ln 2 x tokens / bytes, with the token and UTF-8 byte counts of the whole split."""

    num_tokens: int
    """Number of validation tokens predicted."""


@torch.no_grad()
def evaluate(
    loss_of: Callable[[Tensor, Tensor], Tensor],
    windows: EvaluationWindows,
    batch_size: int,
    device: torch.device,
) -> Evaluation:
    """Runs `loss_of(input_ids_BT, targets_BT)` (mean nats) over all `windows`, `batch_size` sequences at a time.

    Collective: each rank takes every world-size-th batch. All ranks run the same number of batches, as ZeRO-3 requires;
    a rank without further batches repeats the split's first and does not count it. Sums are float64.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = range(rank * batch_size, len(windows), world_size * batch_size)
    num_batches = math.ceil(len(windows) / (world_size * batch_size))
    starts = [*mine, *[0] * (num_batches - len(mine))]
    total = torch.zeros(2, dtype=torch.float64, device=device)
    with closing(read_ahead(lambda start: windows.batch(start, start + batch_size), starts, device)) as batches:
        for number, (input_ids_BT, targets_BT) in enumerate(batches):
            loss = loss_of(input_ids_BT, targets_BT)
            if number < len(mine):
                num_tokens = targets_BT.numel()
                total[0] += loss.double() * num_tokens
                total[1] += num_tokens
    dist.all_reduce(total)
    mean = (total[0] / total[1]).item()
    return Evaluation(
        loss=mean,
        perplexity=math.exp(mean) if mean < 700 else math.inf,
        bits_per_byte=mean / math.log(2) / windows.bytes_per_token,
        num_tokens=int(total[1].item()),
    )
