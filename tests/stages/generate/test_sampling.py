"""Sampling as a function of logits and random numbers: filters, frequencies, seeds."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.generate.decode import choose, draws, filtered
from stages.generate.settings import Sampling

LOGITS_BV = torch.tensor([[0.0, 3.0, 1.0, 2.0, -torch.inf, 2.5]])

probabilities = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9).map(
    lambda weights: torch.tensor([weights], dtype=torch.float64) / sum(weights)
)


def kept(probability_BV, **changes) -> list[int]:
    return filtered(probability_BV, Sampling(**changes))[0].nonzero()[:, 0].tolist()


def test_top_k_keeps_the_k_most_likely_tokens_and_those_as_likely_as_the_last():
    assert kept(torch.tensor([[0.1, 0.2, 0.4, 0.1, 0.2]]), top_k=2) == [1, 2, 4]


@given(probabilities, st.floats(0.05, 0.99))
def test_top_p_keeps_the_fewest_most_likely_tokens_that_reach_p(probability_BV, p):
    found = kept(probability_BV, top_p=p)
    chances = sorted(probability_BV[0, found].tolist())
    assert sum(chances) >= p - 1e-9
    assert sum(chances[1:]) < p + 1e-9
    dropped = set(range(probability_BV.shape[1])) - set(found)
    assert all(probability_BV[0, token] <= chances[0] for token in dropped)


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.0), Sampling(temperature=0.5, top_k=3, top_p=0.9)])
def test_tokens_are_drawn_as_often_as_they_are_likely(sampling):
    num = 20_000
    draw_B = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    counts = choose(LOGITS_BV.expand(num, -1), draw_B, sampling).bincount(minlength=6)
    expected = filtered((LOGITS_BV.double() / sampling.temperature).softmax(-1), sampling)[0]
    torch.testing.assert_close(counts / num, (expected / expected.sum()).float(), rtol=0, atol=1e-4)


def chosen(draw, scale=1.0, **sampling):
    draw_B = torch.tensor([draw], dtype=torch.float64)
    return choose(LOGITS_BV.double() * scale, draw_B, Sampling(**sampling)).item()


@given(
    st.floats(0.0, 1.0, exclude_max=True) | st.just(1 - 2**-53), st.floats(0.1, 5.0), st.sampled_from([1, 0.5, 1e-3])
)
def test_a_token_of_probability_0_is_never_drawn(draw, temperature, top_p):
    assert chosen(draw, temperature=temperature, top_p=top_p) != 4


@pytest.mark.parametrize(("temperature", "scale"), [(0.0, 1.0), (5e-324, 1e307), (1e-6, 1e30)])
def test_a_tiny_temperature_takes_the_most_likely_token(temperature, scale):
    assert [chosen(draw, scale, temperature=temperature) for draw in (0.0, 1 - 2**-53)] == [1, 1]


def test_a_rows_random_numbers_depend_on_seed_and_row_alone():
    before = torch.get_rng_state()
    three, one = draws(5, range(3), 40), draws(5, range(1), 10)
    assert torch.equal(three[0, :10], one[0])
    assert not torch.equal(three[0], three[1])
    assert not torch.equal(one, draws(6, range(1), 10))
    assert torch.equal(torch.get_rng_state(), before)
