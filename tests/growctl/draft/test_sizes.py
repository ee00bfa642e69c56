"""A ladder's shape, sizes and recipe follow the published ones where they fit, and stated rules elsewhere."""

import math
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from growctl.draft.recipe import Wish, make_draft, peak_rate, stage_tokens
from growctl.draft.sizes import Size, Vocabularies, ladder_sizes
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
def test_sizes_come_close_to_the_wish_and_grow_by_moderate_factors(params, span, vocabularies, grow_depth):
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


def test_the_last_size_trains_on_half_of_the_tokens_and_the_others_share_the_rest_by_size() -> None:
    sizes = [Size(6, 1, 100_000_000), Size(6, 2, 200_000_000), Size(6, 3, 400_000_000)]
    assert stage_tokens(sizes, 8_000_000_000) == [1_330_000_000, 2_670_000_000, 4_000_000_000]


@given(st.floats(5, 1000), st.floats(1.25, 3))
def test_no_size_but_the_last_sees_more_than_fifty_tokens_per_parameter(ratio: float, factor: float) -> None:
    sizes = [Size(6, 1, 10_000_000), Size(6, 2, round(factor * 10_000_000))]
    total = round(ratio * sizes[-1].num_parameters)
    first, last = stage_tokens(sizes, total)
    assert first <= 50 * sizes[0].num_parameters
    assert first + last == pytest.approx(total, rel=0.01)
    assert last >= 0.495 * total


@pytest.mark.parametrize("gpus", [1, 3, 6, 7, 8, 12, 48])
def test_every_number_of_gpus_can_share_the_batch(gpus: int) -> None:
    draft = make_draft(Wish(params=350_000_000), gpus)
    assert draft.batch_size % gpus == 0
    assert draft.batch_size == pytest.approx(512, rel=0.1)


def test_the_peak_is_published_from_124m_on_and_the_quickstarts_at_its_size() -> None:
    sizes = (100_000, 262_000, 124_000_000, 10**10)
    assert [peak_rate(size, "adamw") for size in sizes] == [6e-3, 6e-3, 6e-4, 6e-4]
    assert [peak_rate(size, "muon") for size in sizes] == [1.2e-2, 1.2e-2, 6e-4, 6e-4]
    assert 6e-3 > peak_rate(1_570_000, "adamw") > peak_rate(20_000_000, "adamw") > 6e-4


@pytest.mark.parametrize(
    ("wish", "gpus", "message"),
    [
        (Wish(params=350_000_000, tokens=1_000_000), 1, r"^--tokens 1M: .*; must be about 6\.55M or more"),
        (Wish(params=1_000_000), 512, r"^--gpus 512: more than the 256 sequences of a step"),
    ],
    ids=["tokens", "gpus"],
)
def test_too_few_tokens_and_more_gpus_than_sequences_are_rejected(wish: Wish, gpus: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_draft(wish, gpus)
