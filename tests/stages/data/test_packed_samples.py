"""Samples of packed documents: read from an index that is whole or made again, in any order, alone or in a mixture."""

import multiprocessing
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


def write_tokens(directory: Path) -> Path:
    """A dataset whose tokens are 0, 1, 2, ..."""
    write_dataset(directory, SHARDS)
    first = 0
    for path in sorted(directory.glob("train/*.ds")):
        count = path.stat().st_size // 2
        path.write_bytes(np.arange(first, first + count).astype("<u2").tobytes())
        first += count
    return directory


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_tokens(tmp_path / "dataset")


def test_an_epoch_reads_every_token_once_but_for_less_than_a_sequence(dataset: Path) -> None:
    samples, num_tokens = TrainingSamples(dataset, LENGTH, seed=1, packing="best_fit"), sum(map(sum, SHARDS))
    assert samples.num_windows == num_tokens // LENGTH
    for epoch in range(3):
        inputs = samples.batch(epoch * samples.num_windows, samples.num_windows)[:, :-1].ravel()
        assert len(set(inputs.tolist())) == len(inputs) == samples.num_windows * LENGTH


def test_the_last_target_of_a_sample_follows_its_last_input_in_the_stream(dataset: Path) -> None:
    batch = TrainingSamples(dataset, LENGTH, seed=1, packing="best_fit").batch(0, 30)
    assert np.array_equal(batch[:, -1], (batch[:, -2] + 1) % sum(map(sum, SHARDS)))


def test_a_sample_follows_from_its_index_alone_and_its_pieces_are_what_it_reads(dataset: Path) -> None:
    samples = TrainingSamples(dataset, LENGTH, seed=7, packing="best_fit")
    batch = samples.batch(0, 60)
    for index in (59, 3, 31):
        assert np.array_equal(samples[index], batch[index])
        pieces = [np.arange(start, start + length) for start, length in samples.origin(index)[2]]
        assert np.array_equal(np.concatenate(pieces) % sum(map(sum, SHARDS)), batch[index])


@pytest.mark.parametrize("damage", [b"", b"{}", None], ids=["empty", "another-file", "one-byte-changed"])
def test_a_broken_index_is_made_again_with_the_same_bytes(dataset: Path, damage: bytes | None) -> None:
    packing_facts(dataset, LENGTH)
    path = packing_file(dataset, LENGTH)
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[HEADER_BYTES + 9] ^= 1
    path.write_bytes(bytes(changed) if damage is None else damage)
    assert known_packing(dataset, LENGTH) is None
    packing_facts(dataset, LENGTH)
    assert path.read_bytes() == whole


def _open(dataset: Path) -> list[int]:
    first: list[int] = TrainingSamples(dataset, LENGTH, seed=1, packing="best_fit")[0].tolist()
    return first


def test_processes_that_start_at_once_read_the_same_samples(dataset: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = pool.map(_open, [dataset] * 8)
    assert found == [_open(dataset)] * 8
    assert [path.name for path in dataset.iterdir() if "packing" in path.name] == [f"packing-{LENGTH}.index"]


def test_an_index_of_other_tokens_is_not_used(dataset: Path, tmp_path: Path) -> None:
    packing_facts(dataset, LENGTH)
    other = write_dataset(tmp_path / "other", [[300], *SHARDS])
    packing_file(dataset, LENGTH).rename(packing_file(other, LENGTH))
    assert known_packing(other, LENGTH) is None


def test_an_index_that_cannot_be_written_is_one_clear_error(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stages.data.packing.os.fsync", full)
    with pytest.raises(DataError, match=rf"data\.packing: .*packing-{LENGTH}\.index cannot be written: No space left"):
        TrainingSamples(dataset, LENGTH, seed=1, packing="best_fit")
    assert not list(dataset.glob(".packing*"))


def test_attention_within_packed_documents_reaches_the_pieces_of_a_sample(dataset: Path) -> None:
    samples = TrainingSamples(dataset, LENGTH, seed=1, packing="best_fit")
    squares = [
        (length - (number == 0)) ** 2  # the last piece has one token more, a target
        for index in range(samples.num_windows)
        for number, (_, length) in enumerate(reversed(samples.origin(index)[2]))
    ]
    expected = sum(squares) / (samples.num_windows * LENGTH)
    assert attended_tokens(dataset_parts(dataset), LENGTH, "best_fit") == pytest.approx(expected)


def test_in_a_mixture_each_source_has_the_packed_samples_that_it_has_alone(dataset: Path, tmp_path: Path) -> None:
    datasets = {"one": dataset, "two": write_tokens(tmp_path / "two")}
    stages = spans_of((0, {"one": 0.7, "two": 0.3}))
    mixed = mixed_samples(datasets, stages, LENGTH, 3, packing="best_fit")
    sources, batch = mixed.places(0, 50)[:, 0], mixed.batch(0, 50)
    for place, path in enumerate(datasets.values()):
        alone = TrainingSamples(path, LENGTH, 3, packing="best_fit").batch(0, int(np.sum(sources == place)))
        assert np.array_equal(batch[sources == place], alone)
    assert not np.array_equal(batch[sources == 0][:5], TrainingSamples(dataset, LENGTH, 3).batch(0, 5))
