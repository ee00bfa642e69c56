"""Training samples of a dataset or a mixture as an endless sequence; the position in it is one integer.

A sample depends only on the seed, the datasets, the weights of a mixture, and its global index. It does not depend on
the number of ranks, on the micro-batch, or on where a run was stopped. Shapes: B batch, T sequence.
"""

from collections.abc import Sequence
from operator import index
from pathlib import Path

import numpy as np

from stages.data.dataset import dataset_parts
from stages.data.mixture import Mixture, MixtureSource, WhenExhausted
from stages.data.order import Blocks, WindowOrder
from stages.data.packing import PackedWindows
from stages.data.tokens import Int64Array, TokenSplit, joined, require_tokens
from stages.spec import MixtureSpan, Packing


class TrainingSamples:
    """The train split of a dataset as a sequence of samples without an end, each of T + 1 tokens: T inputs and T
    shifted targets.

    `WindowOrder` says in which order an epoch uses the windows of a source, and `Mixture` which source a window comes
    from. A sample is a window or, with a longer `window_length`, a piece of one (stages/data/order.py). With packing,
    windows are those of `PackedWindows`, the same in every epoch.
    """

    def __init__(
        self,
        dataset_dir: Path,
        sequence_length: int,
        seed: int,
        spans: Sequence[MixtureSpan] = (),
        when_exhausted: WhenExhausted = "stop",
        packing: Packing = "concatenate",
        window_length: int | None = None,
    ) -> None:
        """Opens the dataset, and packs it if it was not packed before.

        `spans` has the weights of a mixture's sources from the ladder's first window on; empty: the mixture's own
        weights throughout. `window_length`: the longest context of the ladder, a multiple of `sequence_length`; by
        default that itself. Raises DataError if a split is damaged or shorter than one window.
        """
        self._length, window_length = sequence_length, window_length or sequence_length
        self.per_window = window_length // sequence_length
        """Samples of a window."""
        parts = dataset_parts(dataset_dir)
        for part in parts:
            require_tokens(part, "train", window_length)
        self._splits = [TokenSplit(part.directory, "train") for part in parts]
        self._num_tokens = np.array([len(split) for split in self._splits])
        self._num_windows: list[int] = (self._num_tokens // window_length).tolist()
        self._order = WindowOrder(self._num_tokens.tolist(), window_length, seed)
        self._packed = [PackedWindows(part.directory, sequence_length) for part in parts if packing == "best_fit"]
        self.mixture = read_mixture(dataset_dir, window_length, spans, when_exhausted)
        """The order of a mixture's sources, by windows; None for an ordinary dataset."""
        end = self.mixture.end if self.mixture else None
        end = None if end is None else end * self.per_window
        self._blocks, self._expected = Blocks(self.places, end), Blocks(self.places, end)

    def places(self, first_index: int, count: int) -> Int64Array:
        """The source of each sample, and where in its stream it starts: (count, 2).

        With packing, which window of its source it is, instead of where it starts.
        """
        windows, pieces = np.divmod(np.arange(first_index, first_index + count), self.per_window)
        first_window = first_index // self.per_window
        sources, positions = self._turns(first_window, -(-(first_index + count) // self.per_window) - first_window)
        places = (self._order.windows if self._packed else self._order.starts)(sources, positions)
        if self.per_window > 1:
            sources = sources[windows - first_window]
            places = (places[windows - first_window] + pieces * self._length) % self._num_tokens[sources]
        return np.stack([sources, places], axis=1)

    def _turns(self, first_window: int, count: int) -> tuple[Int64Array, Int64Array]:
        """The source of each of `count` windows, and its number among that source's: both (count,)."""
        if self.mixture:
            return self.mixture.locate(first_window, count)
        return np.zeros(count, np.int64), np.arange(first_window, first_window + count)

    def origin(self, index: int) -> tuple[int, int, list[tuple[int, int]]]:
        """The number of a sample's source and its epoch there, and its pieces: where each starts in the source's
        stream, and its tokens."""
        [source], [number] = self._turns(index // self.per_window, 1)
        return int(source), int(number) // self._num_windows[source], self._pieces(*self.places(index, 1)[0].tolist())

    @property
    def num_windows(self) -> int:
        """Windows of an epoch; of a mixture, those of its first source."""
        return self._num_windows[0]

    def _pieces(self, source: int, place: int) -> list[tuple[int, int]]:
        return self._packed[source].pieces(place) if self._packed else [(place, self._length + 1)]

    def batch(self, first_index: int, count: int) -> Int64Array:
        """Samples `first_index` to `first_index + count`: (count, T + 1) int64."""
        arrays = []
        for source, place in self._blocks.read(first_index, count).tolist():
            arrays += self._splits[source].arrays(self._pieces(source, place))
        return joined(arrays, (count, self._length + 1))

    def expect(self, first_index: int, count: int) -> None:
        """Begins to fetch samples that will be read soon, if their tokens are remote."""
        if any(split.is_remote for split in self._splits):
            for source, place in self._expected.read(first_index, count).tolist():
                for start, length in self._pieces(source, place):
                    self._splits[source].expect(start, length)

    def __getitem__(self, place: int) -> Int64Array:
        if index(place) < 0:
            raise IndexError(f"sample {place}: samples are counted from 0 and have no end")
        return self.batch(index(place), 1)[0]

    def epochs_by_source(self, num_samples: int) -> dict[str, float]:
        """How many passes over each source of a mixture `num_samples` samples make."""
        assert self.mixture, "an ordinary dataset has no sources"
        counts = zip(self.mixture.sources, self.mixture.counts(num_samples, self.per_window), strict=True)
        return {source.name: count / self.per_window / source.num_windows for source, count in counts}

    def tokens_by_source(self, first_index: int, count: int) -> dict[str, int]:
        """How many of the tokens that `count` samples from `first_index` on train on come from each source."""
        assert self.mixture, "an ordinary dataset has no sources"
        before, after = (self.mixture.counts(end, self.per_window) for end in (first_index, first_index + count))
        names = [source.name for source in self.mixture.sources]
        return {name: (b - a) * self._length for name, a, b in zip(names, before, after, strict=True)}


def read_mixture(
    dataset_dir: Path, window_length: int, spans: Sequence[MixtureSpan], when_exhausted: WhenExhausted
) -> Mixture | None:
    """The order of a mixture's sources, by windows, from manifests alone; None for an ordinary dataset."""
    sources, weights = [], {}
    for part in dataset_parts(dataset_dir):
        if part.name is None:
            return None
        num_tokens = part.manifest.splits["train"].num_tokens
        sources.append(MixtureSource(part.name, num_tokens, window_length, part.epochs_at_most))
        weights[part.name] = part.weight
    return Mixture(sources, spans or [MixtureSpan(first_window=0, weights=weights)], when_exhausted)
