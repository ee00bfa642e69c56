"""Training samples from windows that best-fit packing makes, in place of windows of the stream as it is.

Shapes: B batch, T sequence.
"""

from pathlib import Path

import numpy as np

from stages.data.packed_split import PackedSplit
from stages.data.sample_order import Blocks, Int64Array
from stages.data.training_samples import TrainingSamples


class PackedSamples(TrainingSamples):
    """The train split as an endless sequence of packed samples, each of T + 1 tokens.

    An epoch uses every window of the packing once, in the order of TrainingSamples. The windows are the same in every
    epoch.
    """

    def __init__(self, dataset_dir: Path, sequence_length: int, seed: int) -> None:
        """Opens the train split, and packs it if it was not packed before. Raises DataError as PackedSplit does."""
        super().__init__(dataset_dir, sequence_length, seed)
        self._packed = PackedSplit(dataset_dir, sequence_length)
        self._blocks = Blocks(self.bounds)
        self._expected = Blocks(self.windows)

    def windows(self, first_index: int, count: int) -> Int64Array:
        """Which windows of the packing the samples are: (count,)."""
        return self._order.windows(np.zeros(count, np.int64), np.arange(first_index, first_index + count))

    def bounds(self, first_index: int, count: int) -> Int64Array:
        """The bounds of these windows in the index of the packing: (count, 2)."""
        return self._packed.bounds(self.windows(first_index, count))

    def pieces(self, index: int) -> list[tuple[int, int]]:
        """Where each part of a sample starts in the stream, and its tokens."""
        *pieces, (start, length) = self._packed.pieces(int(self.windows(index, 1)[0]))
        return [*pieces, (start, length + 1)]

    def batch(self, first_index: int, count: int) -> Int64Array:
        """Samples `first_index` to `first_index + count`: (count, T + 1) int64."""
        tokens_BT = np.empty((count, self._length + 1), np.int64)
        self._packed.fill_windows(tokens_BT.reshape(-1), self._blocks.read(first_index, count).tolist())
        return tokens_BT

    def expect(self, first_index: int, count: int) -> None:
        if self._packed.is_remote:
            for window in self._expected.read(first_index, count).tolist():
                self._packed.expect(window, self._length + 1)
