"""Finds the Transformer shape that comes closest to a Tokenformer's parameter count."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

from model.config import TokenformerConfig, TransformerConfig, num_parameters

CLOSE = 0.02
"""Largest difference in log parameters at which the FFN keeps its usual 4 times the width."""

MOST_LAYERS = 1000
"""The most that a schedule allows."""

_MISS, _SKEW, _FFN_SKEW = 10.0, 0.02, 0.1
"""Weights of a shape's logarithmic distances from the target size, the aspect ratio and the usual FFN size. An aspect
ratio that is off by more than a factor of 2 also adds the excess in full."""


@lru_cache(maxsize=64)
def equal_size_transformer(model: TokenformerConfig | TransformerConfig) -> TransformerConfig:
    """The Transformer nearest to `model` in parameters, with its vocabulary and head width and nearly its aspect ratio.

    Tokenformers grow at constant width; a Transformer of the same size is wider and deeper, as usual in practice. Its
    FFN is 4 times as wide as the model if that comes within `CLOSE` of the size, else 1 to 8 times. Heads are narrower
    only if no number of heads of the same width comes as close.
    """
    shapes = _Shapes(model)
    usual = min(shapes.usual(model.head_width), key=lambda shape: shapes.miss(shape) + shapes.skew(shape))
    if shapes.miss(usual) <= CLOSE:
        return shapes.config(usual)
    best, head_width = usual, model.head_width
    while shapes.miss(best) > CLOSE and head_width >= 1:
        if _can_rotate(model, head_width):
            fitted = shapes.fitted(head_width)
            best = min(best, *fitted, key=shapes.distance)
        head_width //= 2
    return shapes.config(best)


_Shape = tuple[int, int, int, int]
"""(layers, heads, head width, FFN size)"""


class _Shapes:
    """Candidate Transformers for one model, and their distances from it."""

    def __init__(self, model: TokenformerConfig | TransformerConfig) -> None:
        self.model = model
        self.target = num_parameters(model)
        self.aspect = model.hidden_size / model.num_layers
        self._counts = cache(self._count)

    def usual(self, head_width: int) -> Iterator[_Shape]:
        """For every depth, the two shapes nearest in size with an FFN 4 times as wide as the model."""
        for num_layers, num_heads in self._sizes(head_width, around=1):
            yield _usual(num_layers, num_heads, head_width)

    def fitted(self, head_width: int) -> Iterator[_Shape]:
        """For every depth, a few shapes, each with the FFN (1 to 8 times the width) that brings it nearest in size."""
        for num_layers, num_heads in self._sizes(head_width, around=2):
            width = num_heads * head_width
            rest = self.size((num_layers, num_heads, head_width, 0))
            ffn_size = round((self.target - rest) / (num_layers * self._counts(num_heads, head_width)[2]))
            yield num_layers, num_heads, head_width, min(max(ffn_size, width), 8 * width)

    def size(self, shape: _Shape) -> int:
        """Number of parameters."""
        num_layers, num_heads, head_width, ffn_size = shape
        outside, layer, ffn = self._counts(num_heads, head_width)
        return outside + num_layers * (layer + ffn * ffn_size)

    def miss(self, shape: _Shape) -> float:
        """Logarithmic distance from the target size."""
        return abs(math.log(self.size(shape) / self.target))

    def skew(self, shape: _Shape) -> float:
        """The penalty for an aspect ratio unlike the model's."""
        num_layers, num_heads, head_width, _ = shape
        skew = abs(math.log(num_heads * head_width / num_layers / self.aspect))
        return _SKEW * skew + max(0.0, skew - math.log(2))

    def distance(self, shape: _Shape) -> float:
        """The sum of all penalties."""
        _, num_heads, head_width, ffn_size = shape
        ffn_skew = abs(math.log(ffn_size / (4 * num_heads * head_width)))
        return _MISS * self.miss(shape) + self.skew(shape) + _FFN_SKEW * ffn_skew

    def config(self, shape: _Shape) -> TransformerConfig:
        """The model of that shape."""
        num_layers, num_heads, head_width, ffn_size = shape
        return TransformerConfig(
            vocab_size=self.model.vocab_size,
            hidden_size=num_heads * head_width,
            num_heads=num_heads,
            num_layers=num_layers,
            ffn_size=ffn_size,
            rotary_fraction=self.model.rotary_fraction,
            rotary_base=self.model.rotary_base,
        )

    def _sizes(self, head_width: int, around: int) -> Iterator[tuple[int, int]]:
        """(layers, heads) for every depth: the `around` nearest numbers of heads on either side of the target size."""
        most = 1
        while self.size(_usual(1, most, head_width)) < self.target:
            most *= 2
        for num_layers in range(1, min(MOST_LAYERS, 8 * self.model.num_layers) + 1):
            for num_heads in self._heads(num_layers, head_width, most, around):
                yield num_layers, num_heads

    def _heads(self, num_layers: int, head_width: int, most: int, around: int) -> Sequence[int]:
        heads = range(1, most + 1)
        larger = bisect_left(heads, self.target, key=lambda number: self.size(_usual(num_layers, number, head_width)))
        return heads[max(0, larger - around) : larger + around]

    def _count(self, num_heads: int, head_width: int) -> tuple[int, int, int]:
        """Numbers of parameters: outside the layers, in a layer without its FFN, per inner unit of an FFN."""
        one, two, wider = (
            num_parameters(self.config((num_layers, num_heads, head_width, ffn_size)))
            for num_layers, ffn_size in ((1, 1), (2, 1), (1, 2))
        )
        return 2 * one - two, two - wider, wider - one


def _usual(num_layers: int, num_heads: int, head_width: int) -> _Shape:
    """The shape with an FFN 4 times as wide as the model."""
    return num_layers, num_heads, head_width, 4 * num_heads * head_width


def _can_rotate(model: TokenformerConfig | TransformerConfig, head_width: int) -> bool:
    """Whether rotary embeddings rotate a whole number of pairs in heads of that width."""
    turned = int(head_width * model.rotary_fraction)
    return not model.rotary_fraction or (turned >= 2 and turned % 2 == 0)
