"""Where the stages of a ladder begin in the data, and what they read there, on tokens that are their own places."""

import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.ladder.stage_plans import stage_positions
from growctl.schedule.blocks import StageBatch
from stages.data.samples import TrainingSamples
from tests.stages.data.test_dataset import write_dataset

WINDOW, NUM_TOKENS = 12, 1000
NUM_WINDOWS = NUM_TOKENS // WINDOW
DIVISORS = st.sampled_from([1, 2, 3, 4, 6, 12])
LADDERS = st.lists(st.tuples(DIVISORS, st.integers(1, 5), st.integers(1, 20)), min_size=1, max_size=5)
"""(context, batch, steps) of the stages."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset") / "one", [700, 300], [100])


def read(opened: TrainingSamples, first: int, count: int, ranks: int) -> list[int]:
    """The input tokens of `count` samples, read by `ranks` ranks one after another."""
    rows: dict[int, list[int]] = {}
    for rank in range(ranks):
        for index in range(first + rank, first + count, ranks):
            rows[index] = opened.batch(index, 1)[0, :-1].tolist()
    return [token for index in sorted(rows) for token in rows[index]]


@settings(max_examples=30)
@given(LADDERS, st.integers(0, 2**63), st.integers(1, 3))
def test_no_token_is_an_input_twice_within_an_epoch_whatever_the_contexts(
    dataset: Path, ladder: list[tuple[int, int, int]], seed: int, ranks: int
) -> None:
    batches = [StageBatch(batch, context) for context, batch, _ in ladder]
    positions, inputs, skipped, end = stage_positions(batches, [steps for *_, steps in ladder]), [], 0, 0
    for (context, batch, steps), position in zip(ladder, positions, strict=True):
        assert position % context == 0
        assert 0 <= position - end < context, "less than a sequence is skipped"
        skipped, end = skipped + position - end, position + batch * steps * context
        inputs += read(
            TrainingSamples(dataset, context, seed, window_length=WINDOW), position // context, batch * steps, ranks
        )
    of_first_epoch = inputs[: NUM_WINDOWS * WINDOW - skipped]
    assert len(set(of_first_epoch)) == len(of_first_epoch)
    assert max(Counter(inputs).values()) <= math.ceil(end / (NUM_WINDOWS * WINDOW)) + 1
