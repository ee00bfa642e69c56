"""The mean number of tokens that attention multiplies a token with, against counting them in every window."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.flops import training_flops_per_token
from stages.data.dataset import dataset_manifest_bytes, dataset_parts, read_dataset_manifest
from stages.data.documents import mean_attended_tokens, misplaced_ends
from tests.model.growths import small_config
from tests.stages.data.test_documents import write_dataset


def counted(lengths: list[int], length: int) -> float:
    """The same over all windows of a stream whose end joins its start, token by token."""
    document = np.repeat(np.arange(len(lengths)), lengths)
    total = 0
    for start in range(len(document)):
        window = np.take(document, range(start, start + length), mode="wrap")
        pieces = np.split(window, np.flatnonzero(np.diff(window)) + 1)
        total += sum(len(piece) ** 2 for piece in pieces)
    return total / (len(document) * length)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=6), st.integers(1, 20), st.integers(0, 5))
def test_the_closed_form_equals_counting_in_every_window(lengths, length, cut):
    lengths = [*lengths, max(1, length)]  # a window may not hold more than the stream
    parts = [np.array(part, np.int64) for part in (lengths[:cut], lengths[cut:])]
    assert mean_attended_tokens(parts, length) == pytest.approx(counted(lengths, length), rel=1e-12)


def test_documents_much_longer_than_a_window_are_attended_to_in_full():
    assert mean_attended_tokens([np.array([10**9])], 1024) == pytest.approx(1024, rel=1e-5)


def test_only_the_flops_of_attention_depend_on_the_tokens_attended_to():
    config = small_config()
    whole, half = training_flops_per_token(config, 64), training_flops_per_token(config, 32.0)
    assert (half.parameters, half.head) == (whole.parameters, whole.head)
    assert half.attention == whole.attention / 2


def test_every_source_of_a_mixture_must_end_its_documents_in_the_same_token(tmp_path):
    datasets = [write_dataset(tmp_path / name, [[5, 9]]) for name in ("a", "b")]
    assert misplaced_ends([part for path in datasets for part in dataset_parts(path)]) is None
    other = read_dataset_manifest(datasets[1]).model_copy(update={"end_of_text_id": 7})
    (datasets[1] / "manifest.json").write_bytes(dataset_manifest_bytes(other))
    assert misplaced_ends([part for path in datasets for part in dataset_parts(path)]) == (
        f"the documents of {datasets[1]} end in <|endoftext|> (id 7), not in the end of text with id 0"
    )
