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
    model: LanguageModel,
    tops: Sequence[TopTokens],
    context: int,
    dense_loss: float,
    loss: Callable[[], float],
    by_layer: bool = False,
) -> Iterator[Reading]:
    """Yields the loss of the whole model, then that with each of `tops`: in all Pattentions, in those of each kind
    alone and, `by_layer`, in those of each layer alone.

    `loss` computes it; FLOPs are those at sequences of `context` data tokens. Nothing without `tops`.
    """
    parts: list[tuple[tuple[str, ...], int | None]] = [(kinds, None) for kinds in KINDS]
    parts += [(PATTENTIONS, layer) for layer in range(model.config.num_layers)] if by_layer else []
    dense = [(TopTokens(amount=1.0), parts[0])] if tops else []
    for number, (top, (kinds, layer)) in enumerate((*dense, *product(tops, parts))):
        with reading_top(model, top, kinds, layer):
            value = loss() if number else dense_loss
        assert isinstance(model.config, TokenformerConfig)
        share, flops = share_and_flops_read(model.config, top, kinds, context, layer)
        kind = kinds[0] if len(kinds) == 1 else None
        yield Reading(amount=top.amount, kind=kind, layer=layer, share=share, loss=value, flops_per_token=flops)
