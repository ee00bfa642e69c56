"""Validation loss over a fixed set of sequences, split over the ranks.

Shapes: B batch, T sequence.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from stages.data import EvaluationWindows


class Evaluation(NamedTuple):
    """What a pass over validation text gave."""

    loss: float
    """Mean cross-entropy, nats a token."""

    perplexity: float
    """exp(loss); infinity where that overflows."""

    bits_per_byte: float
    """loss / ln 2 x tokens / bytes, with the tokens and UTF-8 bytes of the whole split."""

    num_tokens: int
    """Validation tokens that were predicted."""


@torch.no_grad()
def evaluate(
    loss_of: Callable[[Tensor, Tensor], Tensor],
    windows: EvaluationWindows,
    batch_size: int,
    device: torch.device,
) -> Evaluation:
    """Runs `loss_of(input_ids_BT, targets_BT)` (mean nats) over all `windows`, `batch_size` sequences at a time.

    Collective: each rank takes every world-size-th batch. All ranks run equally often, as ZeRO-3 needs; a rank that is
    out of batches repeats the first and does not count it. Sums are float64.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    starts = range(0, len(windows), batch_size)
    total = torch.zeros(2, dtype=torch.float64)
    for first in range(0, len(starts), world_size):
        counts = first + rank < len(starts)
        start = starts[first + rank] if counts else 0
        tokens_BT = torch.from_numpy(windows.batch(start, min(start + batch_size, len(windows)))).to(device)
        loss = loss_of(tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].contiguous())
        if counts:
            num_tokens = tokens_BT[:, 1:].numel()
            total += torch.tensor([loss.item() * num_tokens, num_tokens], dtype=torch.float64)
    total = total.to(device)
    dist.all_reduce(total)
    mean = (total[0] / total[1]).item()
    return Evaluation(
        loss=mean,
        perplexity=math.exp(mean) if mean < 700 else math.inf,
        bits_per_byte=mean / math.log(2) / windows.bytes_per_token,
        num_tokens=int(total[1].item()),
    )
