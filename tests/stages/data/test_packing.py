"""Best-fit packing: every token in one window, none of them padded, and as few documents cut as best fit leaves."""

from bisect import bisect_left, insort

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.data import packing
from stages.data.packing import best_fit, pack


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
def test_windows_are_full_and_hold_every_token_once_and_only_their_last_piece_ends_inside_a_document(
    lengths, length, block
):
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


@pytest.mark.parametrize(
    ("lengths", "windows"),
    [
        ([5, 3, 6, 2, 8], [[(0, 5), (5, 3)], [(8, 6), (14, 2)], [(16, 8)]]),  # fit together without a cut
        ([7, 7, 7], [[(0, 7), (14, 1)], [(7, 7), (15, 1)]]),  # the emptiest window fills the gaps of the others
        ([19, 5], [[(0, 8)], [(8, 8)], [(16, 3), (19, 5)]]),  # longer than a window
    ],
)
def test_documents_are_cut_only_to_fill_gaps_and_where_they_are_longer_than_a_window(lengths, windows):
    assert sorted(windows_of(lengths, 8)) == windows
