"""stages.train.rank_data.py: the tokens of each source that a stage has trained on, with skipped data left out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.samples import TrainingSamples
from stages.spec import MixtureSpan
from stages.train.rank_data import source_use
from stages.train.skipped_data import position, trained_ranges
from tests.stages.checkpoints import small_config
from tests.stages.data.test_dataset import write_dataset
from tests.stages.specs import small_spec

SPANS = (MixtureSpan(first_window=0, weights={"a": 3.0, "b": 1.0}), MixtureSpan(first_window=35, weights={"b": 1.0}))
LEFT_OUT = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), max_size=3).map(sorted).map(tuple)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> TrainingSamples:
    folder = tmp_path_factory.mktemp("datasets")
    sources = [Ingredient(name, write_dataset(folder / name, [200], [50]), 1.0) for name in ("a", "b")]
    return TrainingSamples(write_mixture(sources, folder), 10, 0, SPANS)


@given(LEFT_OUT, st.integers(0, 15), st.integers(0, 9))
def test_the_tokens_are_those_of_the_samples_that_updates_read(samples, left_out, step, samples_seen):
    spec = small_spec(small_config(), left_out=left_out, samples_seen=samples_seen, mixture=SPANS)
    firsts = [samples_seen + position(number, left_out) * spec.batch_size for number in range(step)]
    sources = [source for first in firsts for source in samples.places(first, spec.batch_size)[:, 0].tolist()]
    found = source_use(samples, spec, step)
    assert {name: each["trained_tokens"] for name, each in found.items()} == {
        name: 10 * sources.count(number) for number, name in enumerate("ab")
    }
    assert sum(each["trained_tokens"] for each in found.values()) == step * spec.batch_size * spec.sequence_length


@given(LEFT_OUT, st.integers(0, 15))
def test_the_trained_ranges_are_the_positions_of_the_updates(left_out, step):
    ranges = [np.arange(first, first + count) for first, count in trained_ranges(step, left_out)]
    assert np.concatenate([[], *ranges]).tolist() == [position(number, left_out) for number in range(step)]


def test_epochs_count_from_the_ladders_first_sample_and_with_skipped_data(samples):
    spec = small_spec(small_config(), samples_seen=8, left_out=((1, 2),), mixture=SPANS)
    assert source_use(samples, spec, 3)["a"]["epochs"] == samples.epochs_by_source(8 + (3 + 2) * 4)["a"]
