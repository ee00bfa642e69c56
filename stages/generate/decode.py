"""The token loop: reads prompts with a model, then appends one token to each row at a time, chosen from the logits.

Shapes: B rows, T positions, V vocabulary, S steps.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from model.cache import KVCache
from model.errors import Failure
from model.language_model import LanguageModel
from stages.generate.settings import Sampling


def decode(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: Sampling,
    *,
    num_token_ids: int | None = None,
    rows: Sequence[int | str] | None = None,
) -> Iterator[list[int]]:
    """Yields the next token of every row, `max_new_tokens` times. Whoever wants fewer stops asking.

    `prompts` holds one or more token ids for each row, which may differ in number. Ids from `num_token_ids` on are
    never chosen: they are padding rows of the embedding. `rows` names the random numbers of each row, by default with
    its number: rows of one name draw alike, in any batch. Equal prompts are read once.

    Raises Failure if the logits are not finite.
    """
    device = model.embedding.weight.device
    draws_BS = draws(sampling.seed, rows or range(len(prompts)), max_new_tokens).to(device)
    logits_BV, cache = _read(model, prompts, max_new_tokens)
    for step in range(max_new_tokens):
        logits_BV = logits_BV[:, :num_token_ids]
        if not logits_BV.isfinite().all():
            raise Failure("the model's logits are not finite: its training diverged, or the precision is too low")
        token_B = choose(logits_BV, draws_BS[:, step], sampling)
        yield token_B.tolist()
        if step + 1 < max_new_tokens:
            with torch.inference_mode():
                logits_BV = model(token_B[:, None], cache=cache, logits_to_keep=1)[:, 0]


@torch.inference_mode()
def _read(model: LanguageModel, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> tuple[Tensor, KVCache]:
    """The logits after each prompt, and a cache that holds the prompts, with room for the new tokens."""
    input_BT, starts_B = padded(prompts)
    input_BT = input_BT.to(model.embedding.weight.device)
    num_rows, longest = input_BT.shape
    if num_rows > 1 and starts_B.eq(0).all() and input_BT.eq(input_BT[0]).all():
        row = model.new_cache(1, longest)
        logits_BV = model(input_BT[:1], cache=row, logits_to_keep=1)[:, 0].expand(num_rows, -1)
        cache = model.new_cache(num_rows, longest + max_new_tokens)
        cache.begin_with(row)
    else:
        cache = model.new_cache(num_rows, longest + max_new_tokens, starts_B)
        logits_BV = model(input_BT, cache=cache, logits_to_keep=1)[:, 0]
    return logits_BV, cache


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Rows of token ids padded on the left with 0 to the longest, int64, and the number of padding ids of each."""
    longest = max(map(len, rows))
    starts = [longest - len(row) for row in rows]
    return torch.tensor([[0] * start + [*row] for start, row in zip(starts, rows, strict=True)]), torch.tensor(starts)


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
    return probability_BV
