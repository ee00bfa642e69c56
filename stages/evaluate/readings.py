"""The loss of a trained model whose data tokens read only some of its parameter tokens."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from model.language_model import LanguageModel
from model.tokenformer import reading_top
from model.tokenformer_config import PATTENTIONS, TokenformerConfig
from model.top_tokens import TopTokens, share_and_flops_read
from stages.evaluate.results import Reading

KINDS = (PATTENTIONS, *((name,) for name in PATTENTIONS))
"""The Pattentions whose tokens are left out together, for each number of them."""


def readings(
    model: LanguageModel, tops: Sequence[TopTokens], context: int, dense_loss: float, loss: Callable[[], float]
) -> Iterator[Reading]:
    """Yields the loss of the whole model, then that with each of `tops`: in all Pattentions, and in each kind alone.

    `loss` computes it; FLOPs are those at sequences of `context` data tokens. Nothing without `tops`.
    """
    dense = [(TopTokens(amount=1.0), PATTENTIONS)] if tops else []
    for number, (top, kinds) in enumerate((*dense, *product(tops, KINDS))):
        with reading_top(model, top, kinds):
            value = loss() if number else dense_loss
        assert isinstance(model.config, TokenformerConfig)
        share, flops = share_and_flops_read(model.config, top, kinds, context)
        kind = kinds[0] if len(kinds) == 1 else None
        yield Reading(amount=top.amount, kind=kind, share=share, loss=value, flops_per_token=flops)
