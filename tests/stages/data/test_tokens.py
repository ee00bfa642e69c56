"""Numbers of several files as one sequence, whose end joins its start."""

import numpy as np

from stages.data.tokens import Numbers, joined


def test_pieces_that_cross_files_and_the_end_are_read_whole() -> None:
    parts = [np.arange(7, dtype="<u2"), np.arange(7, 12, dtype="<u4"), np.arange(12, 20, dtype="<u8")]
    numbers, pieces = Numbers.join(parts), [(0, 3), (5, 4), (11, 1), (6, 8), (17, 9), (3, 1)]
    found = joined(numbers.arrays(pieces), (26,))
    assert found.dtype == np.int64
    assert found.tolist() == [place % 20 for start, length in pieces for place in range(start, start + length)]
