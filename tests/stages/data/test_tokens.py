"""Numbers of several files as one sequence: pieces of it are the same, read together or one by one."""

import numpy as np

from stages.data.tokens import Numbers


def test_pieces_that_cross_files_and_the_end_are_filled_as_one_by_one() -> None:
    parts = [np.arange(7, dtype="<u2"), np.arange(7, 12, dtype="<u4"), np.arange(12, 20, dtype="<u8")]
    numbers, pieces = Numbers.join(parts), [(0, 3), (5, 4), (11, 1), (6, 8), (17, 9), (3, 1)]
    together = np.empty(sum(length for _, length in pieces), np.int64)
    numbers.fill_pieces(together, pieces)
    alone = [np.empty(length, np.int64) for _, length in pieces]
    for array, (start, _) in zip(alone, pieces, strict=True):
        numbers.fill(array, start)
    assert together.tolist() == np.concatenate(alone).tolist()
    numbers.fill_pieces(together[:0], [])
