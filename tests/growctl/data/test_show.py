"""The counts of growctl/data/show.py against naive counts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.data import show
from growctl.data.show import PERCENTILES, count_ids_of, count_lengths

lengths = st.one_of(st.integers(1, 20), st.integers(1, 5000), st.integers(1, 2**40))


@settings(max_examples=100)
@given(st.lists(st.lists(lengths, max_size=30), max_size=4).filter(any))
def test_lengths_are_counted_exactly_whatever_the_parts(parts: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(show, "DENSE", 64)
        found = count_lengths(np.array(part, np.int64) for part in parts)
    every = sorted(length for part in parts for length in part)
    assert (found.shortest, found.longest) == (every[0], every[-1])
    assert found.mean == sum(every) / len(every)
    expected = [every[max(0, math.ceil(percent * len(every) / 100) - 1)] for percent in PERCENTILES]
    assert list(found.percentiles.values()) == expected
    ranges = [(1 << power, (2 << power) - 1) for power in range(41)]
    inside = [[length for length in every if low <= length <= high] for low, high in ranges]
    first, last = (every[place].bit_length() - 1 for place in (0, -1))
    assert [(each.shortest, each.longest, each.num_documents, each.num_tokens) for each in found.histogram] == [
        (*ranges[power], len(inside[power]), sum(inside[power])) for power in range(first, last + 1)
    ]


@settings(max_examples=50)
@given(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=60), min_size=1, max_size=3),
    st.integers(1, 45),
    st.integers(1, 45),
)
def test_used_ids_are_counted_exactly(parts: list[list[int]], tokenizer_size: int, vocab_size: int) -> None:
    found = count_ids_of((np.array(part, np.int64) for part in parts), tokenizer_size, vocab_size)
    every = [token for part in parts for token in part]
    assert found.num_used == len({token for token in every if token < tokenizer_size})
    assert found.share_used == found.num_used / tokenizer_size
    assert found.num_beyond == sum(token >= vocab_size for token in every)
    assert found.largest == max(every)
