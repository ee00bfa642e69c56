"""The windows of a split on which a model is evaluated; of a mixture, those of its sources.

Shapes: B batch, T sequence.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stages.data.dataset import dataset_parts
from stages.data.spec import SplitName
from stages.data.tokens import Int64Array, TokenSplit, joined, require_tokens


class WindowsOfSource(NamedTuple):
    """The evaluation windows of one source of a mixture. An ordinary dataset is its own only source."""

    name: str | None
    """None for an ordinary dataset."""

    weight: float
    """Its share of the loss of the mixture: base weights, scaled to a sum of 1."""

    first: int
    """The place of its first window among those of all sources."""

    num_windows: int
    bytes_per_token: float
    """UTF-8 bytes of text per token of its whole split."""


class EvaluationWindows:
    """A split as consecutive windows of T + 1 tokens that overlap by one token, so that no token is a target twice.

    The rest of fewer than T tokens at the end is left out, so all windows have the same weight. With `max_sequences`,
    windows are spread evenly over the split, because neighbouring documents are often similar.

    The windows of a mixture are those of its sources, one source after another. `max_sequences` are shared out in
    proportion to the base weights: at least one for each source, and no more than it has.
    """

    def __init__(
        self, dataset_dir: Path, split: SplitName, sequence_length: int, max_sequences: int | None = None
    ) -> None:
        """Opens the split. Raises DataError if it, or that of a source, is shorter than one window."""
        parts = dataset_parts(dataset_dir)
        for part in parts:
            require_tokens(part, split, sequence_length)
        total_weight = sum(part.weight for part in parts)
        weights = [part.weight / total_weight for part in parts]
        self._length = sequence_length
        self._splits = [TokenSplit(part.directory, split) for part in parts]
        totals = [(len(tokens) - 1) // sequence_length for tokens in self._splits]
        counts = totals if max_sequences is None else _shared_out(max_sequences, weights, totals)
        self._windows = np.concatenate(
            [np.arange(count) * total // count for count, total in zip(counts, totals, strict=True)]
        )
        self._sources = np.repeat(np.arange(len(counts)), counts)
        firsts = np.cumsum([0, *counts[:-1]]).tolist()
        sizes = [tokens.bytes_per_token for tokens in self._splits]
        self.sources = tuple(map(WindowsOfSource, [part.name for part in parts], weights, firsts, counts, sizes))
        """The windows by source."""

    def __len__(self) -> int:
        return len(self._windows)

    def source(self, place: int) -> WindowsOfSource:
        """The source of one window. Raises IndexError beyond either end."""
        return self.sources[self._sources[place]]

    def batches(self, batch_size: int) -> list[tuple[int, int, int]]:
        """(number of the source, start, stop) of batches that cover all windows, each of one source alone."""
        return [
            (number, start, min(start + batch_size, source.first + source.num_windows))
            for number, source in enumerate(self.sources)
            for start in range(source.first, source.first + source.num_windows, batch_size)
        ]

    def batch(self, start: int, stop: int) -> Int64Array:
        """Windows `start` to `stop`, in order: (stop - start, T + 1) int64, with fewer rows at the end."""
        arrays = []
        for tokens, first in self._places(start, stop):
            arrays += tokens.arrays([(first, self._length + 1)])
        return joined(arrays, (len(self._windows[start:stop]), self._length + 1))

    def expect(self, start: int, stop: int) -> None:
        """Begins to fetch windows `start` to `stop`, if they are remote and not on this machine."""
        for tokens, first in self._places(start, stop):
            tokens.expect(first, self._length + 1)

    def __getitem__(self, place: int) -> Int64Array:
        """One window: (T + 1,) int64. Raises IndexError beyond either end."""
        return self._splits[self._sources[place]].read(int(self._windows[place]) * self._length, self._length + 1)

    def _places(self, start: int, stop: int) -> Iterator[tuple[TokenSplit, int]]:
        """The split that holds each window, and the window's first token in it."""
        for source, window in zip(self._sources[start:stop].tolist(), self._windows[start:stop].tolist(), strict=True):
            yield self._splits[source], window * self._length


def longest_window(dataset_dir: Path, split: SplitName) -> int:
    """The most tokens that a window of a split can have; of a mixture, one of any source."""
    return max(1, min(part.manifest.splits[split].num_tokens for part in dataset_parts(dataset_dir)) - 1)


def _shared_out(number: int, weights: Sequence[float], most: Sequence[int]) -> list[int]:
    """`number` windows shared out in proportion to `weights`, one at a time to the source that is furthest behind.

    Each source gets at least one, and no more than `most`.
    """
    limits = np.minimum(most, max(1, number))
    behind = np.concatenate(
        [weight / (2 * np.arange(1, limit) + 1) for weight, limit in zip(weights, limits, strict=True)]
    )
    sources = np.repeat(np.arange(len(weights)), limits - 1)
    chosen = np.lexsort((sources, -behind))[: max(0, number - len(weights))]
    counts: list[int] = (1 + np.bincount(sources[chosen], minlength=len(weights))).tolist()
    return counts
