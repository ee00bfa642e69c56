"""Finds the Transformer shape that comes closest to a Tokenformer's parameter count."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import NamedTuple

from model.config import TokenformerConfig, TransformerConfig, num_parameters

CLOSE = 0.02
"""Largest difference in log parameters at which the FFN keeps its usual 4 times the width."""

MOST_LAYERS = 1000
"""The most that a schedule allows."""

_MISS, _SKEW, _FFN_SKEW = 10.0, 0.02, 0.1
"""Weights of a shape's logarithmic distances from the target size, the aspect ratio and the usual FFN size. An aspect
ratio that is off by more than a factor of 2 also adds the excess in full."""


class _Shape(NamedTuple):
    num_layers: int
    num_heads: int
    head_width: int
    ffn_size: int


@lru_cache(maxsize=64)
def equal_size_transformer(model: TokenformerConfig | TransformerConfig) -> TransformerConfig:
    """The Transformer nearest to `model` in parameters, with its vocabulary and head width and nearly its aspect ratio.

    Tokenformers grow at constant width; a Transformer of the same size is wider and deeper, as usual in practice. Its
    FFN is 4 times as wide as the model if that comes within `CLOSE` of the size, else 1 to 8 times. Heads are narrower
    only if no number of heads of the same width comes as close.
    """
    target, aspect = num_parameters(model), model.hidden_size / model.num_layers

    @cache
    def counts(num_heads: int, head_width: int) -> tuple[int, int, int]:
        """Numbers of parameters: outside the layers, in a layer without its FFN, per inner unit of an FFN."""
        one, two, wider = (
            num_parameters(_config(model, _Shape(num_layers, num_heads, head_width, ffn_size)))
            for num_layers, ffn_size in ((1, 1), (2, 1), (1, 2))
        )
        return 2 * one - two, two - wider, wider - one

    def size(shape: _Shape) -> int:
        outside, layer, ffn = counts(shape.num_heads, shape.head_width)
        return outside + shape.num_layers * (layer + ffn * shape.ffn_size)

    def miss(shape: _Shape) -> float:
        return abs(math.log(size(shape) / target))

    def skew(shape: _Shape) -> float:
        """The penalty for an aspect ratio unlike the model's."""
        skew = abs(math.log(shape.num_heads * shape.head_width / shape.num_layers / aspect))
        return _SKEW * skew + max(0.0, skew - math.log(2))

    def distance(shape: _Shape) -> float:
        ffn_skew = abs(math.log(shape.ffn_size / (4 * shape.num_heads * shape.head_width)))
        return _MISS * miss(shape) + skew(shape) + _FFN_SKEW * ffn_skew

    def usual(head_width: int, around: int) -> Iterator[_Shape]:
        """For every depth, the `around` nearest shapes on either side of the target; an FFN has 4 times the width."""

        def shape(num_layers: int, num_heads: int) -> _Shape:
            return _Shape(num_layers, num_heads, head_width, 4 * num_heads * head_width)

        most = 1
        while size(shape(1, most)) < target:
            most *= 2
        for num_layers in range(1, min(MOST_LAYERS, 8 * model.num_layers) + 1):
            heads = range(1, most + 1)
            larger = bisect_left(heads, target, key=lambda number: size(shape(num_layers, number)))
            yield from (shape(num_layers, number) for number in heads[max(0, larger - around) : larger + around])

    def fitted(head_width: int) -> Iterator[_Shape]:
        """For every depth, a few shapes, each with the FFN (1 to 8 times the width) that brings it nearest in size."""
        for shape in usual(head_width, around=2):
            per_unit, width = counts(shape.num_heads, head_width)[2], shape.num_heads * head_width
            ffn_size = round((target - size(shape._replace(ffn_size=0))) / (shape.num_layers * per_unit))
            yield shape._replace(ffn_size=min(max(ffn_size, width), 8 * width))

    best, head_width = min(usual(model.head_width, around=1), key=lambda s: miss(s) + skew(s)), model.head_width
    while miss(best) > CLOSE and head_width >= 1:
        turned = int(head_width * model.rotary_fraction)  # rotary embeddings rotate whole pairs
        if not model.rotary_fraction or (turned >= 2 and turned % 2 == 0):
            best = min(best, *fitted(head_width), key=distance)
        head_width //= 2
    return _config(model, best)


def _config(model: TokenformerConfig | TransformerConfig, shape: _Shape) -> TransformerConfig:
    return TransformerConfig(
        vocab_size=model.vocab_size,
        hidden_size=shape.num_heads * shape.head_width,
        num_heads=shape.num_heads,
        num_layers=shape.num_layers,
        ffn_size=shape.ffn_size,
        rotary_fraction=model.rotary_fraction,
        rotary_base=model.rotary_base,
    )
