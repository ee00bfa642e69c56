"""Windows of the stream, read in pieces: how stages of different contexts share one order of the data.

The order is that of windows of L tokens, the longest context of a ladder. A stage at context T, a divisor of L, reads
each window in L / T pieces, one after another: its sample i is piece i mod (L / T) of window i div (L / T). Wherever a
stage ends in the order, the next one begins there, whatever its context; so no token is read twice within an epoch.
"""

from typing import NamedTuple

import numpy as np

from stages.token_files.mapped import Int64Array


class WindowPieces(NamedTuple):
    """How samples of one context lie in windows. With the context of the windows, a sample is a window."""

    sequence_length: int
    """T."""

    per_window: int
    """Samples of a window: L / T."""

    @classmethod
    def of(cls, window_length: int, sequence_length: int) -> "WindowPieces":
        """The pieces of windows of `window_length` tokens, a multiple of `sequence_length`."""
        assert window_length % sequence_length == 0, f"{sequence_length} does not divide {window_length}"
        return cls(sequence_length, window_length // sequence_length)

    def windows(self, first_index: int, count: int) -> tuple[int, int]:
        """The first window of `count` samples from `first_index` on, and the number of windows that they touch."""
        first = first_index // self.per_window
        return first, (first_index + count - 1) // self.per_window + 1 - first if count else 0

    def places(self, first_index: int, count: int) -> tuple[Int64Array, Int64Array]:
        """Of each of these samples: which of the windows that they touch it is in, and its first token there."""
        indices = np.arange(first_index, first_index + count)
        windows, pieces = np.divmod(indices, self.per_window)
        return windows - first_index // self.per_window, pieces * self.sequence_length
