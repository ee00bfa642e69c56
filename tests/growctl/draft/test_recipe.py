"""Tokens, batch and learning rate of a draft follow the rules in docs/schedules.md."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growctl.draft.recipe import Wish, make_draft, peak_rate, stage_tokens
from growctl.draft.sizes import Size
from model.errors import UserError


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
