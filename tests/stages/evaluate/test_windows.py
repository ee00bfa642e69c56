"""Sliding windows score every token once, with as much context as the stride leaves."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stages.evaluate.windows import sliding_windows


@given(st.data(), st.integers(2, 200), st.integers(1, 20))
def test_every_token_but_the_first_is_scored_once_after_enough_context(data, num_tokens: int, context: int):
    stride = data.draw(st.integers(1, context))
    cuts = sorted(data.draw(st.lists(st.integers(0, num_tokens), max_size=5)))
    scored: list[int] = []
    for window in sliding_windows(np.split(np.arange(num_tokens), cuts), context, stride):
        assert len(window.tokens) <= context + 1
        assert (np.diff(window.tokens) == 1).all()
        targets = window.tokens[len(window.tokens) - window.num_scored :].tolist()
        assert targets[0] - window.tokens[0] >= min(context - stride, targets[0]), "too little context"
        scored += targets
    assert scored == list(range(1, num_tokens))
