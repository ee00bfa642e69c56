"""How the next token is chosen from the model's logits.

Shapes: B rows, V vocabulary, S steps.
"""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from stages.generate.settings import Sampling


def draws(seed: int, rows: Iterable[int | str], num_steps: int) -> Tensor:
    """The random numbers that choose the tokens of each row: (B, S), float64, uniform in [0, 1), on the CPU.

    A row has its own generator, named in `rows`, so its text does not depend on which rows are beside it. No global
    state is read or changed.
    """
    return torch.stack([torch.rand(num_steps, dtype=torch.float64, generator=_of(seed, row)) for row in rows])


def _of(seed: int, row: int | str) -> torch.Generator:
    digest = hashlib.blake2b(f"{seed}/sample/{row}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def choose(logits_BV: Tensor, draw_B: Tensor, sampling: Sampling) -> Tensor:
    """One token id for each row: (B,), int64. `draw_B` is float64, on the logits' device.

    Inverts the cumulative distribution at `draw_B`, in float64: equal logits and draws give equal tokens.
    """
    if sampling.is_greedy:
        return logits_BV.argmax(dim=-1)
    below_BV = logits_BV.double() - logits_BV.amax(dim=-1, keepdim=True).double()  # 0 and less cannot overflow to NaN
    probability_BV = filtered((below_BV / sampling.temperature).softmax(dim=-1), sampling)
    sum_BV = probability_BV.cumsum(dim=-1)
    total_B1 = sum_BV[:, -1:]
    below_B1 = torch.nextafter(total_B1, torch.zeros_like(total_B1))  # rounding must not reach beyond the last token
    target_B1 = torch.minimum(draw_B[:, None] * total_B1, below_B1)
    return torch.searchsorted(sum_BV, target_B1, right=True)[:, 0]


def filtered(probability_BV: Tensor, sampling: Sampling) -> Tensor:
    """The probabilities with those of the tokens that the filters drop set to 0; the rest is not scaled up again."""
    if sampling.top_k is not None and sampling.top_k < probability_BV.shape[-1]:
        least_B1 = probability_BV.topk(sampling.top_k, dim=-1).values[:, -1:]
        probability_BV = probability_BV.where(probability_BV >= least_B1, 0.0)
    if sampling.top_p < 1.0:
        sorted_BV, order_BV = probability_BV.sort(dim=-1, descending=True, stable=True)
        before_BV = sorted_BV.cumsum(dim=-1) - sorted_BV
        kept_BV = sorted_BV.where(before_BV < sampling.top_p * sorted_BV.sum(dim=-1, keepdim=True), 0.0)
        probability_BV = torch.zeros_like(probability_BV).scatter(-1, order_BV, kept_BV)
    if sampling.min_p > 0.0:
        most_B1 = probability_BV.amax(dim=-1, keepdim=True)
        probability_BV = probability_BV.where(probability_BV >= sampling.min_p * most_B1, 0.0)
    return probability_BV
