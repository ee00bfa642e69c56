"""The train split of a dataset as an endless sequence of samples; the position in it is one integer.

A sample depends only on the seed and its global index. It does not depend on the number of ranks, on the micro-batch,
or on where a run was stopped. Shapes: B batch, T sequence.
"""

from pathlib import Path

import numpy as np

from stages.data.sample_order import Blocks, Int64Array, WindowOrder
from stages.data.sample_range import EndlessSamples
from stages.data.token_split import TokenSplit, require_tokens
from stages.data.window_pieces import WindowPieces


class TrainingSamples(EndlessSamples):
    """The train split as an endless sequence of samples. A sample has T + 1 tokens: T inputs and T shifted targets.

    `WindowOrder` says in which order an epoch uses the windows of the stream. A sample is a window, or with a longer
    `window_length`, a piece of one (stages/data/window_pieces.py).
    """

    def __init__(self, dataset_dir: Path, sequence_length: int, seed: int, window_length: int | None = None) -> None:
        """Opens the train split. `window_length`: a multiple of `sequence_length`; by default that itself.

        Raises DataError if the split is shorter than one window.
        """
        window_length = window_length or sequence_length
        self._split = TokenSplit(dataset_dir, "train")
        self._length = sequence_length
        require_tokens(dataset_dir, "train", self._split.num_tokens, window_length)
        self._in_windows = WindowPieces.of(window_length, sequence_length)
        self.per_window = self._in_windows.per_window
        """Samples of a window."""
        self.num_windows = self._split.num_tokens // window_length
        """Windows of an epoch."""
        self._order = WindowOrder([self._split.num_tokens], window_length, seed)
        self._blocks = Blocks(self.starts)
        self._expected = Blocks(self.starts)

    def epochs(self, num_samples: int) -> float:
        """How many passes over the data `num_samples` samples make."""
        return num_samples / (self.num_windows * self.per_window)

    def starts(self, first_index: int, count: int) -> Int64Array:
        """The positions in the stream where the samples start: (count,) int64, each in [0, tokens of the split)."""
        first, num_windows = self._in_windows.windows(first_index, count)
        starts = self._order.starts(np.zeros(num_windows, np.int64), np.arange(first, first + num_windows))
        if self.per_window == 1:
            return starts
        windows, offsets = self._in_windows.places(first_index, count)
        return (starts[windows] + offsets) % self._split.num_tokens

    def pieces(self, index: int) -> list[tuple[int, int]]:
        """Where each part of a sample starts in the stream, and its tokens: one part."""
        return [(int(self.starts(index, 1)[0]), self._length + 1)]

    def batch(self, first_index: int, count: int) -> Int64Array:
        """Samples `first_index` to `first_index + count`: (count, T + 1) int64."""
        tokens_BT = np.empty((count, self._length + 1), np.int64)
        for row, start in zip(tokens_BT, self._blocks.read(first_index, count).tolist(), strict=True):
            self._split.fill(row, start)
        return tokens_BT

    def expect(self, first_index: int, count: int) -> None:
        if self._split.is_remote:
            for start in self._expected.read(first_index, count).tolist():
                self._split.expect(start, self._length + 1)
