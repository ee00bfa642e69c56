"""Best-fit packing: windows full of pieces of documents, and their samples, read from an index."""

import multiprocessing
import os
from bisect import bisect_left, insort
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.data import packing
from stages.data.dataset import dataset_parts
from stages.data.errors import DataError
from stages.data.packing import (
    HEADER_BYTES,
    attended_tokens,
    best_fit,
    known_packing,
    pack,
    packing_facts,
    packing_file,
)
from stages.data.samples import TrainingSamples
from tests.stages.data.test_documents import write_dataset


def windows_of(lengths: list[int], length: int) -> list[list[tuple[int, int]]]:
    """The windows, each a list of (start, length) pieces."""
    found = []
    for block in pack([np.array(part, np.int64) for part in np.array_split(lengths, 3)], length):
        pieces = list(zip(block.pieces.starts.tolist(), block.pieces.lengths.tolist(), strict=True))
        for number in block.num_pieces.tolist():
            found.append(pieces[:number])
            pieces = pieces[number:]
        assert not pieces
    return found


@settings(max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 16), st.sampled_from([1, 5, 12, 99]))
def test_full_windows_hold_every_token_once_and_only_their_last_piece_ends_in_a_document(lengths, length, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "BLOCK_DOCUMENTS", block)
        windows = windows_of(lengths, length)
    assert [sum(size for _, size in pieces) for pieces in windows] == [length] * (sum(lengths) // length)
    tokens = [token for pieces in windows for start, size in pieces for token in range(start, start + size)]
    assert len(tokens) == len(set(tokens))
    assert set(tokens) <= set(range(sum(lengths)))
    if block == 99:
        ends = set(np.cumsum(lengths).tolist())
        assert all(start + size in ends for pieces in windows for start, size in pieces[:-1])


@settings(max_examples=60)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(20, 30))
def test_pieces_are_placed_as_by_best_fit_one_at_a_time(lengths, capacity):
    lengths = sorted(lengths, reverse=True)
    rooms: list[int] = []
    for size in lengths:
        place = bisect_left(rooms, size)
        room = rooms.pop(place) if place < len(rooms) else capacity
        insort(rooms, room - size)
    windows, used = best_fit(np.array(lengths), capacity)
    assert sorted(capacity - used) == rooms
    assert np.bincount(windows, lengths).astype(int).tolist() == used.tolist()


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
    assert known_packing(dataset, LENGTH)
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
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(DataError, match=rf"data\.packing: .*packing-{LENGTH}\.index cannot be written: No space left"):
        TrainingSamples(dataset, LENGTH, seed=1, packing="best_fit")
    assert not list(dataset.glob(".packing*"))
