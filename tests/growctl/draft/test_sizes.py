"""A ladder's shape and sizes follow the published ones where they fit, and stated rules elsewhere."""

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from growctl.draft.sizes import Vocabularies, ladder_sizes
from model.errors import UserError

parameters = st.floats(math.log10(150e3), 10).map(lambda exponent: round(10**exponent))
"""150k to 10B, evenly in logarithms."""
bases = st.none() | st.floats(1.25, 30)
"""How many times the last size is above the base; None: the default base."""

PILE = Vocabularies(published=True)


@pytest.mark.parametrize(
    ("millions", "layers", "width"),
    [(124, 12, 768), (354, 24, 1024), (454, 24, 1024), (903, 32, 1280), (1590, 40, 1536)],
)
def test_a_base_of_a_published_size_gets_its_published_shape(millions: int, layers: int, width: int) -> None:
    base = millions * 1_000_000
    shape, sizes = ladder_sizes(3 * base, base, PILE, grow_depth=False)
    assert (shape.num_layers, shape.width, shape.published) == (layers, width, True)
    assert sizes[0].num_parameters == pytest.approx(base, rel=0.02)


@pytest.mark.slow
@given(parameters, bases, st.sampled_from([PILE, Vocabularies(), Vocabularies(most=1024)]), st.booleans())
def test_sizes_come_close_to_the_wish_and_grow_by_moderate_factors(
    params: int, span: float | None, vocabularies: Vocabularies, grow_depth: bool
) -> None:
    base = None if span is None else round(params / span)
    try:
        shape, sizes = ladder_sizes(params, base, vocabularies, grow_depth=grow_depth)
    except UserError:
        assume(False)  # another test covers bases that no width can span
    assert sizes[-1].num_parameters == pytest.approx(params, rel=0.03)
    if span:
        assert sizes[0].num_parameters == pytest.approx(params / span, rel=0.05)
    for before, after in pairwise(sizes):
        assert 1.15 < after.num_parameters / before.num_parameters < 3.2
        assert before.name != after.name
        assert before.num_layers <= after.num_layers
        assert before.attention_tokens <= after.attention_tokens
    assert sizes[-1].num_layers == shape.num_layers
    assert grow_depth or sizes[0].num_layers == shape.num_layers
    assert all(size.ffn_tokens == 4 * size.attention_tokens for size in sizes)
    assert 0.2 * shape.width < sizes[0].attention_tokens <= sizes[-1].attention_tokens < 17 * shape.width


@pytest.mark.parametrize("base", [1_000_000, 200_000_000, 190_000_000, 400_000_000])
def test_a_base_that_no_width_can_span_is_rejected_with_the_allowed_range(base: int) -> None:
    with pytest.raises(UserError, match=r"^--base \d+M: must be 6,68\d,\d+ to 160M for --params 200M; "):
        ladder_sizes(200_000_000, base, PILE, grow_depth=True)
