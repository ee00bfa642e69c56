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
OF_AN_EPOCH = NUM_TOKENS // WINDOW * WINDOW
LADDERS = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(1, 5), st.integers(1, 20)), min_size=1, max_size=5
)
"""(context, batch, steps) of the stages."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset") / "one", [700, 300], [100])


@settings(max_examples=30)
@given(LADDERS, st.integers(0, 2**63))
def test_no_token_is_an_input_twice_within_an_epoch_whatever_the_contexts(
    dataset: Path, ladder: list[tuple[int, int, int]], seed: int
) -> None:
    batches = [StageBatch(batch, context) for context, batch, _ in ladder]
    positions, inputs, skipped, end = stage_positions(batches, [steps for *_, steps in ladder]), [], 0, 0
    for (context, batch, steps), position in zip(ladder, positions, strict=True):
        assert position % context == 0
        assert 0 <= position - end < context, "less than a sequence is skipped"
        skipped, end = skipped + position - end, position + batch * steps * context
        samples, first = TrainingSamples(dataset, context, seed, window_length=WINDOW), position // context
        inputs += samples.batch(first, batch * steps)[:, :-1].flatten().tolist()
    of_first_epoch = inputs[: OF_AN_EPOCH - skipped]
    assert len(set(of_first_epoch)) == len(of_first_epoch)
    assert max(Counter(inputs).values()) <= math.ceil(end / OF_AN_EPOCH) + 1
