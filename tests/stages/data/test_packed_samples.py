"""Samples of packed documents: read from an index that is whole or made again, in any order, alone or in a mixture."""

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from stages.data.dataset import dataset_parts
from stages.data.errors import DataError
from stages.data.packing import HEADER_BYTES, attended_tokens, known_packing, packing_facts, packing_file
from stages.data.samples import TrainingSamples
from tests.stages.data.mixtures import mixed_samples, spans_of
from tests.stages.data.test_documents import write_dataset

LENGTH = 16
SHARDS = [[5, 40, 3, 11, 16], [2, 9, 9, 9, 30, 1, 7], [13, 12]]
NUM_TOKENS = sum(map(sum, SHARDS))


def write_tokens(directory: Path) -> Path:
    """A dataset whose tokens are 0, 1, 2, ..."""
    write_dataset(directory, SHARDS)
    tokens = np.split(np.arange(NUM_TOKENS), np.cumsum([*map(sum, SHARDS)]))
    for path, part in zip(sorted(directory.glob("train/*.ds")), tokens, strict=False):
        path.write_bytes(part.astype("<u2").tobytes())
    return directory


@pytest.fixture
def dataset(tmp_path):
    return write_tokens(tmp_path / "dataset")


def test_an_epoch_reads_every_token_once_and_each_sample_is_its_pieces_and_the_next_target(dataset):
    samples = TrainingSamples(dataset, LENGTH, seed=1, packing="best_fit")
    assert samples.num_windows == NUM_TOKENS // LENGTH
    batch, squares = samples.batch(0, 3 * samples.num_windows), 0
    for inputs in np.split(batch[:, :-1], 3):
        assert len(np.unique(inputs)) == inputs.size
    assert np.array_equal(batch[:, -1], (batch[:, -2] + 1) % NUM_TOKENS)
    for index in reversed(range(samples.num_windows)):
        assert np.array_equal(samples[index], batch[index])
        pieces = [np.arange(start, start + length) for start, length in samples.origin(index)[2]]
        assert np.array_equal(np.concatenate(pieces) % NUM_TOKENS, batch[index])
        *lengths, last = map(len, pieces)
        squares += sum(length**2 for length in (*lengths, last - 1))
    expected = squares / (samples.num_windows * LENGTH)
    assert attended_tokens(dataset_parts(dataset), LENGTH, "best_fit") == pytest.approx(expected)


@pytest.mark.parametrize("damage", [b"", b"{}", None], ids=["empty", "another-file", "one-byte-changed"])
def test_a_broken_index_is_made_again_with_the_same_bytes(dataset, damage):
    packing_facts(dataset, LENGTH)
    path = packing_file(dataset, LENGTH)
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[HEADER_BYTES + 9] ^= 1
    path.write_bytes(bytes(changed) if damage is None else damage)
    assert known_packing(dataset, LENGTH) is None
    packing_facts(dataset, LENGTH)
    assert path.read_bytes() == whole


def test_an_index_of_other_tokens_is_not_used(dataset, tmp_path):
    packing_facts(dataset, LENGTH)
    other = write_dataset(tmp_path / "other", [[300], *SHARDS])
    packing_file(dataset, LENGTH).rename(packing_file(other, LENGTH))
    assert known_packing(other, LENGTH) is None


def _open(dataset: Path) -> list[int]:
    first: list[int] = TrainingSamples(dataset, LENGTH, seed=1, packing="best_fit")[0].tolist()
    return first


def test_processes_that_start_at_once_read_the_same_samples(dataset):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = pool.map(_open, [dataset] * 8)
    assert found == [_open(dataset)] * 8
    assert [path.name for path in dataset.iterdir() if "packing" in path.name] == [f"packing-{LENGTH}.index"]


def test_an_index_that_cannot_be_written_is_one_clear_error(dataset, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=rf"data\.packing: .*packing-{LENGTH}\.index cannot be written: No space left"):
        TrainingSamples(dataset, LENGTH, seed=1, packing="best_fit")
    assert not list(dataset.glob(".packing*"))


def test_in_a_mixture_each_source_has_the_packed_samples_that_it_has_alone(dataset, tmp_path):
    datasets = {"one": dataset, "two": write_tokens(tmp_path / "two")}
    mixed = mixed_samples(datasets, spans_of((0, {"one": 0.7, "two": 0.3})), LENGTH, 3, packing="best_fit")
    sources, batch = mixed.places(0, 50)[:, 0], mixed.batch(0, 50)
    for place, path in enumerate(datasets.values()):
        alone = TrainingSamples(path, LENGTH, 3, packing="best_fit").batch(0, int(np.sum(sources == place)))
        assert np.array_equal(batch[sources == place], alone)
