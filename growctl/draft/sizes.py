"""Chooses the width of a draft's models, and the layers and parameter tokens of each stage.

A growth never changes the width, so one shape serves the whole ladder. Published shapes are those of Tokenformer (arXiv
2410.23168).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from growctl.text.formatting import short_count
from model.errors import UserError
from model.shapes import num_parameters
from model.tokenformer_config import TokenformerConfig, tokenformer_config

NEOX_VOCABULARY = 50304
"""GPT-NeoX-20B's tokens, padded as in all published runs."""

TOKENS_PER_WIDTH = (0.25, 16.0)
"""Fewest and most parameter tokens in each of Q, K, V and O, as multiples of the width. The quickstart begins at 0.25;
the published ladder spans 0.75 to 11.2."""

FFN_FACTOR = 4
"""FFN tokens per attention token, as in all published runs."""

USUAL_GROWTH = 2.2
"""Factor in parameters per growth: the published ladder's, 124M to 1.31B in three growths."""

LARGEST_GROWTH = 3.0
"""The published ladder's largest is 2.87."""

SMALLEST_GROWTH = 1.25

PUBLISHED_BASE = 124_000_000
PUBLISHED_SPAN = (2.0, 12.0)
"""Factors above `PUBLISHED_BASE` at which it is the default base. The published ladder ends at 10.6."""

DEFAULT_SPAN = 5.0
"""Elsewhere the default base is this many times smaller than the last size: two usual growths."""


@dataclass(frozen=True)
class Shape:
    """What all stages of a ladder share, and its context."""

    num_layers: int
    """Of the last stage; of all stages if only tokens grow."""

    width: int
    num_heads: int
    sequence_length: int
    vocab_size: int
    """Entries of a tokenizer that growctl trains for this width."""

    published: bool = False


SHAPES = (
    Shape(3, 64, 4, 64, 1024),  # the quickstart
    Shape(4, 128, 4, 128, 4096),  # wikitext
    Shape(4, 256, 4, 256, 8192),
    Shape(6, 384, 6, 256, 8192),
    Shape(8, 512, 8, 512, 16384),
    Shape(10, 640, 10, 512, 32768),
    Shape(12, 768, 12, 1024, 32768, published=True),
    Shape(24, 1024, 16, 1024, 32768, published=True),
    Shape(32, 1280, 16, 1024, 32768, published=True),
    Shape(40, 1536, 16, 1024, 32768, published=True),
)
"""From the narrowest on. Unpublished ones follow 12 x 768: heads of 64, and a width of 64 per layer; the first two are
shipped schedules. Contexts below the published 1024 are the largest power of two up to the width, as in those two."""


@dataclass(frozen=True)
class Vocabularies:
    """The sizes of a text's tokenizer."""

    published: bool = False
    """Whether published shapes use GPT-NeoX-20B's tokenizer on this text."""

    most: int | None = None
    """Most entries of a tokenizer that is trained on the text; None: as many as the shape takes."""

    given: int | None = None
    """Entries of the tokenizer of a text that is a prepared dataset."""

    def of(self, shape: Shape) -> int:
        """Rows of the embedding of that shape."""
        if self.given:
            return self.given
        if self.published and shape.published:
            return NEOX_VOCABULARY
        return min(shape.vocab_size, self.most or shape.vocab_size)


@dataclass(frozen=True)
class Size:
    """The size of one stage."""

    num_layers: int
    attention_tokens: int
    """Parameter tokens in each of Q, K, V and O."""

    num_parameters: int

    @property
    def ffn_tokens(self) -> int:
        """Parameter tokens in the FFN."""
        return FFN_FACTOR * self.attention_tokens

    @property
    def name(self) -> str:
        """The size as a stage's name: 350m."""
        return short_count(self.num_parameters).lower()


def ladder_sizes(
    params: int, base: int | None, vocabularies: Vocabularies, *, grow_depth: bool
) -> tuple[Shape, list[Size]]:
    """The shape of a ladder to `params` parameters and the size of each stage, from `base` on or from the default base.

    With `grow_depth`, layers grow as well as tokens; otherwise all stages have all layers.

    Raises UserError if no shape spans both.
    """
    spans = {
        shape: [_parameters(shape, vocabularies, round(e * shape.width)) for e in TOKENS_PER_WIDTH] for shape in SHAPES
    }
    smallest = min(least for least, most in spans.values() if params <= most)
    largest = math.floor(params / SMALLEST_GROWTH)
    low, high = PUBLISHED_SPAN
    default = PUBLISHED_BASE if low <= params / PUBLISHED_BASE <= high else round(params / DEFAULT_SPAN)
    first = base or min(max(default, smallest), largest)
    if base is not None and not smallest <= base <= largest:
        raise UserError(
            f"--base {short_count(base)}: must be {smallest:,} to {short_count(largest)} for --params "
            f"{short_count(params)}; all stages share one width, which suits no wider span"
        )
    fitting = [shape for shape, (least, most) in spans.items() if least <= first and params <= most]
    shape = min(fitting, key=lambda s: abs(math.log(_parameters(s, vocabularies, s.width) / first)))
    growths = num_growths(params / first)
    wanted = [first * (params / first) ** (number / growths) for number in range(growths + 1)]
    depths = _depths(shape, vocabularies, wanted) if grow_depth else [shape.num_layers] * len(wanted)
    sizes: list[Size] = []
    for num_layers, number in zip(reversed(depths), reversed(wanted), strict=True):
        most = sizes[0].attention_tokens if sizes else None
        sizes.insert(0, size_near(shape, vocabularies, num_layers, number, most))
    return shape, sizes


def num_growths(factor: float) -> int:
    """The number of growths that multiply the parameters by `factor`."""
    usual = round(math.log(factor) / math.log(USUAL_GROWTH))
    fewest = math.ceil(math.log(factor) / math.log(LARGEST_GROWTH) - 1e-9)
    return max(1, usual, fewest)


def _depths(shape: Shape, vocabularies: Vocabularies, wanted: Sequence[float]) -> list[int]:
    """The layers of each stage: in proportion to the square root of the parameters outside the embedding, so that
    layers and tokens have equal parts in every growth, but enough that no stage needs more tokens than the next one."""
    outside = [parameters - _parameters(shape, vocabularies, 0) for parameters in wanted]
    depths = [shape.num_layers]
    for here, after in zip(outside[-2::-1], outside[:0:-1], strict=True):
        even = round(shape.num_layers * math.sqrt(here / outside[-1]))
        depths.insert(0, max(1, even, math.ceil(depths[0] * here / after)))
    return depths


def size_near(shape: Shape, vocabularies: Vocabularies, num_layers: int, parameters: float, most: int | None) -> Size:
    """The size nearest to `parameters` with a round number of tokens, `most` at most: a multiple of the largest power
    of two up to a 32nd of it, 64 at most."""
    none, one = (_parameters(shape, vocabularies, tokens, num_layers) for tokens in (0, 1))
    exact = (parameters - none) / (one - none)
    multiple = min(64, 2 ** max(0, math.floor(math.log2(exact / 32))))
    tokens = multiple * max(1, round(exact / multiple))
    if most is not None:
        tokens = min(tokens, most)
    return Size(num_layers, tokens, _parameters(shape, vocabularies, tokens, num_layers))


@cache
def _parameters(shape: Shape, vocabularies: Vocabularies, tokens: int, num_layers: int | None = None) -> int:
    """Parameters of a model with `tokens` in each of Q, K, V and O, by default with all the shape's layers."""
    num_layers = num_layers or shape.num_layers
    one, two = (num_parameters(model_of(shape, vocabularies, Size(num_layers, count, 0))) for count in (1, 2))
    return one + (tokens - 1) * (two - one)


def model_of(shape: Shape, vocabularies: Vocabularies, size: Size) -> TokenformerConfig:
    """The model of that size."""
    return tokenformer_config(
        num_layers=size.num_layers,
        attention_tokens=size.attention_tokens,
        ffn_tokens=size.ffn_tokens,
        vocab_size=vocabularies.of(shape),
        hidden_size=shape.width,
        num_heads=shape.num_heads,
    )
