"""Computes the validation loss over a fixed set of sequences, split over the ranks.

Shapes: B batch, T sequence, S sources.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import torch
import torch.distributed as dist
from torch import Tensor

from stages.data.evaluation_windows import EvaluationWindows, WindowsOfSource
from stages.data.read_ahead import EXPECTED_SAMPLES, read_ahead
from stages.metrics import Record


@torch.no_grad()
def evaluate(
    loss_of: Callable[[Tensor, Tensor], Tensor],
    windows: EvaluationWindows,
    batch_size: int,
    device: torch.device,
    use: Mapping[str, Record] | None = None,
) -> Record:
    """Runs `loss_of(input_ids_BT, targets_BT)` (mean nats) over all `windows`, `batch_size` sequences at a time.

    Returns what an EvaluationLine says of a loss (stages/metrics_lines.py). `use`: what it says of each source of a
    mixture besides, by name.

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
    return _evaluation(totals_S2.tolist(), windows.sources, use or {})


def _evaluation(
    totals: Sequence[tuple[float, float]], sources: Sequence[WindowsOfSource], use: Mapping[str, Record]
) -> Record:
    """The result, from the sum of losses and the number of tokens of each source."""
    losses = [total / num_tokens for total, num_tokens in totals]
    bits = [loss / math.log(2) / source.bytes_per_token for loss, source in zip(losses, sources, strict=True)]
    num_tokens = [int(tokens) for _, tokens in totals]
    mean = sum(source.weight * loss for source, loss in zip(sources, losses, strict=True))
    by_source = {
        source.name: {"loss": losses[i], "bits_per_byte": bits[i], "num_tokens": num_tokens[i]} | use[source.name]
        for i, source in enumerate(sources)
        if source.name and source.name in use
    }
    return {
        "loss": mean,
        "perplexity": math.exp(mean) if mean < 700 else math.inf,
        "bits_per_byte": sum(source.weight * each for source, each in zip(sources, bits, strict=True)),
        "num_tokens": sum(num_tokens),
        "by_source": by_source or None,
    }
