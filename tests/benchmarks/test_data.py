"""The benchmark of reading data reads equal shapes and counts right; its times are not tested."""

import json

import numpy as np
import pytest

from benchmarks.data import (
    BATCH,
    GOALS,
    LENGTH,
    WEIGHTS,
    document_ends,
    import_megatron,
    measured,
    readers_of,
    write_dataset,
)
from tests.stages.data.mixtures import mixed_samples, spans_of
from tests.stages.data.test_dataset import write_dataset as write_numbers


def test_the_document_has_every_ratio_and_the_mixtures_proportions(tmp_path):
    document = measured(tmp_path, num_tokens=8192, turns=2, batches=2)
    assert GOALS.keys() <= document["ratios"].keys()
    assert min(document["tokens_per_second"].values()) > 0
    counts = document["samples_of_each_source_after_10000"]
    assert all(abs(counts[name] - 10_000 * weight) < 2 for name, weight in WEIGHTS.items())
    json.dumps(document)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_an_imported_megatron_file_is_read_in_place(tmp_path, dtype):
    imported = import_megatron(tmp_path / "megatron", np.arange(5000).astype(dtype))
    assert (imported / "train/00000.ds").samefile(tmp_path / "megatron/tokens.bin")


def test_all_readers_read_whole_samples_of_the_same_shape(tmp_path):
    whole = write_numbers(tmp_path / "numbers", [4000], [9], token_bytes=2)
    documents = write_dataset(tmp_path / "documents", np.arange(4000, dtype=np.uint16), document_ends(4000))
    mixed = mixed_samples({"a": whole}, spans_of((0, {"a": 1})), LENGTH, seed=0)
    batches = {name: read() for name, read in readers_of(whole, documents, mixed, {"megatron": whole}).items()}
    assert batches.pop("packed").shape == (BATCH, LENGTH + 1)
    for batch in batches.values():
        assert batch.shape == (BATCH, LENGTH + 1)
        assert set((batch[:, 1:] - batch[:, :-1]).ravel().tolist()) <= {1, -3999}
    assert (batches["training"] == batches["mixture"]).all()
    assert (batches["training"] == batches["megatron"]).all()
