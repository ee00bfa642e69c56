"""Training samples of a dataset or a mixture as an endless sequence; the position in it is one integer.

A sample depends only on the seed, the datasets, the weights of a mixture, and its global index. It does not depend on
the number of ranks, on the micro-batch, or on where a run was stopped. Shapes: B batch, T sequence.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from typing import overload

import numpy as np

from stages.data.dataset import MixtureEntry, read_dataset_manifest, require_one_tokenizer
from stages.data.errors import DataError
from stages.data.mixture import NO_SOURCES, Mixture, MixtureSource, MixtureStage, WhenExhausted
from stages.data.order import Blocks, WindowOrder, WindowPieces
from stages.data.packing import PackedSplit
from stages.data.tokens import Int64Array, TokenSplit, require_tokens
from stages.spec import MixtureSpan, Packing


class EndlessSamples(ABC):
    """A sequence of samples without an end, each of T + 1 tokens: T inputs and T shifted targets.

    `samples[i]` is one sample; `samples[first:stop]` is a SampleRange, which has a length, for torch's DataLoader,
    grain and other loaders. `WindowOrder` says in which order an epoch uses the windows of a source. A sample is a
    window, or with a longer `window_length`, a piece of one (stages/data/order.py). With packing, windows are those of
    `PackedSplit`, the same in every epoch.
    """

    def __init__(
        self,
        datasets: Mapping[str, Path],
        sequence_length: int,
        seed: int,
        window_length: int | None,
        packing: Packing,
    ) -> None:
        """Opens the train splits. `window_length`: a multiple of `sequence_length`; by default that itself.

        Raises DataError if a split is damaged or shorter than one window.
        """
        window_length, packs = window_length or sequence_length, packing == "best_fit"
        assert not packs or window_length == sequence_length, "packed windows are not read in pieces"
        self._length = sequence_length
        self._in_windows = WindowPieces.cut(window_length, sequence_length)
        self.per_window = self._in_windows.per_window
        """Samples of a window."""
        self._splits: list[TokenSplit | PackedSplit] = []
        for name, dataset_dir in datasets.items():
            split = PackedSplit(dataset_dir, sequence_length) if packs else TokenSplit(dataset_dir, "train")
            require_tokens(dataset_dir, "train", split.num_tokens, window_length, name)
            self._splits.append(split)
        self._num_tokens = np.array([split.num_tokens for split in self._splits])
        order = WindowOrder(self._num_tokens.tolist(), window_length, seed)
        self._place_of = order.windows if packs else order.starts
        self._read_in_order()

    def _read_in_order(self, end: int | None = None) -> None:
        """Sets up reading: `end` is the number of samples; None without an end."""
        self._blocks, self._expected = Blocks(self.places, end), Blocks(self.places, end)

    @abstractmethod
    def locate(self, first_window: int, count: int) -> tuple[Int64Array, Int64Array]:
        """The source of each of `count` windows, and its number among that source's: both (count,)."""

    def places(self, first_index: int, count: int) -> Int64Array:
        """The source of each sample, and where in its stream it starts: (count, 2).

        With packing, which window of its source it is, instead of where it starts.
        """
        sources, positions = self.locate(*self._in_windows.windows(first_index, count))
        places = self._place_of(sources, positions)
        if self.per_window > 1:
            windows, offsets = self._in_windows.places(first_index, count)
            sources = sources[windows]
            places = (places[windows] + offsets) % self._num_tokens[sources]
        return np.stack([sources, places], axis=1)

    def turn(self, index: int) -> tuple[int, int]:
        """The source of a sample, and the number of its window among that source's."""
        sources, positions = self.locate(index // self.per_window, 1)
        return int(sources[0]), int(positions[0])

    def epoch_windows(self, source: int) -> int:
        """The windows of a source in one epoch."""
        return int(self._num_tokens[source]) // (self._length * self.per_window)

    def pieces(self, index: int) -> list[tuple[int, int]]:
        """Where each part of a sample starts in its source's stream, and its tokens."""
        [[source, place]] = self.places(index, 1).tolist()
        return self._splits[source].pieces(place, self._length + 1)

    def batch(self, first_index: int, count: int) -> Int64Array:
        """Samples `first_index` to `first_index + count`: (count, T + 1) int64."""
        tokens_BT = np.empty((count, self._length + 1), np.int64)
        places = self._blocks.read(first_index, count)
        if len(self._splits) == 1:
            self._splits[0].fill_rows(tokens_BT, places[:, 1].tolist())
        else:
            for row, (source, place) in zip(tokens_BT, places.tolist(), strict=True):
                self._splits[source].fill(row, place)
        return tokens_BT

    def expect(self, first_index: int, count: int) -> None:
        """Begins to fetch samples that will be read soon, if their tokens are remote."""
        if any(split.is_remote for split in self._splits):
            for source, place in self._expected.read(first_index, count).tolist():
                self._splits[source].expect(place, self._length + 1)

    @overload
    def __getitem__(self, place: int) -> Int64Array: ...
    @overload
    def __getitem__(self, place: slice) -> "SampleRange": ...
    def __getitem__(self, place: int | slice) -> "Int64Array | SampleRange":
        if isinstance(place, slice):
            first, stop = place.start or 0, place.stop
            if stop is None or first < 0 or stop < 0 or place.step not in (None, 1):
                raise IndexError(f"{place}: samples have no end, so a range of them needs a stop of 0 or more, no step")
            return SampleRange(self, first, stop)
        if index(place) < 0:
            raise IndexError(f"sample {place}: samples are counted from 0 and have no end")
        return self.batch(index(place), 1)[0]


class SampleRange:
    """Samples `first_index` to `stop_index` as a sequence: each (T + 1,) int64.

    It can be pickled, so a loader can hand it to its processes.
    """

    def __init__(self, samples: EndlessSamples, first_index: int, stop_index: int) -> None:
        self._samples = samples
        self._indices = range(first_index, stop_index)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: int) -> Int64Array:
        return self._samples[self._indices[place]]


class TrainingSamples(EndlessSamples):
    """The train split of one dataset as samples."""

    def __init__(
        self,
        dataset_dir: Path,
        sequence_length: int,
        seed: int,
        window_length: int | None = None,
        packing: Packing = "concatenate",
    ) -> None:
        """Opens the train split, and packs it if it was not packed before. Raises DataError as EndlessSamples does."""
        super().__init__({"": dataset_dir}, sequence_length, seed, window_length, packing)
        self.num_windows = self.epoch_windows(0)
        """Windows of an epoch."""

    def locate(self, first_window: int, count: int) -> tuple[Int64Array, Int64Array]:
        return np.zeros(count, np.int64), np.arange(first_window, first_window + count)

    def epochs(self, num_samples: int) -> float:
        """How many passes over the data `num_samples` samples make."""
        return num_samples / (self.num_windows * self.per_window)


class MixedSamples(EndlessSamples):
    """The train splits of several datasets that share one tokenizer as samples, in the proportions of a mixture.

    `Mixture` says which source a sample comes from. Within a source, the samples are those of TrainingSamples, in the
    same order: a mixture of one source is TrainingSamples. Sources take turns at whole windows: all pieces of a window
    come from one source, and `stages` start at windows.
    """

    def __init__(
        self,
        datasets: Mapping[str, Path],
        stages: Sequence[MixtureStage],
        sequence_length: int,
        seed: int,
        epochs_at_most: Mapping[str, float | None] | None = None,
        when_exhausted: WhenExhausted = "stop",
        packing: Packing = "concatenate",
        window_length: int | None = None,
    ) -> None:
        """Opens the datasets, each under the name of its source.

        Raises DataError as EndlessSamples does, if the tokenizers differ, and as `Mixture` does.
        """
        if not datasets:
            raise DataError(NO_SOURCES)
        require_one_tokenizer(datasets)
        super().__init__(datasets, sequence_length, seed, window_length, packing)
        most, length = epochs_at_most or {}, sequence_length * self.per_window
        sizes = zip(datasets, self._num_tokens.tolist(), strict=True)
        sources = [MixtureSource(name, num_tokens, length, most.get(name)) for name, num_tokens in sizes]
        self.mixture = Mixture(sources, stages, when_exhausted)
        """The order of the sources, by windows."""
        self._read_in_order(None if self.mixture.end is None else self.mixture.end * self.per_window)

    @property
    def names(self) -> list[str]:
        """The names of the sources."""
        return [source.name for source in self.mixture.sources]

    def locate(self, first_window: int, count: int) -> tuple[Int64Array, Int64Array]:
        return self.mixture.locate(first_window, count)

    def epochs(self, num_samples: int) -> float:
        """How many passes over its data `num_samples` samples make of the source that is read most often."""
        return max(self.epochs_by_source(num_samples).values())

    def epochs_by_source(self, num_samples: int) -> dict[str, float]:
        """How many passes over each source `num_samples` samples make."""
        counts = zip(self.mixture.sources, self._counts(num_samples), strict=True)
        return {source.name: count / self.per_window / source.num_windows for source, count in counts}

    def tokens_by_source(self, first_index: int, count: int) -> dict[str, int]:
        """How many of the tokens that `count` samples from `first_index` on train on come from each source."""
        before, after = self._counts(first_index), self._counts(first_index + count)
        return {name: (b - a) * self._length for name, a, b in zip(self.names, before, after, strict=True)}

    def _counts(self, num_samples: int) -> list[int]:
        """How many of the first `num_samples` samples each source has."""
        return self.mixture.counts_of_pieces(num_samples, self.per_window)


def open_samples(
    dataset_dir: Path,
    sequence_length: int,
    seed: int,
    mixture: Sequence[MixtureSpan] = (),
    when_exhausted: WhenExhausted = "stop",
    packing: Packing = "concatenate",
    window_length: int | None = None,
) -> TrainingSamples | MixedSamples:
    """The training samples of a dataset, each of `sequence_length` + 1 tokens.

    `mixture` has the weights of a mixture's sources from the ladder's first window on; empty: the mixture's own weights
    throughout. `window_length`: the longest context of the ladder, on whose windows the order is defined; by default
    `sequence_length`. Raises DataError if the dataset cannot be read or is too short, and if the weights do not fit it.
    """
    sources = read_dataset_manifest(dataset_dir).sources
    if not sources:
        if mixture:
            raise DataError(f"data.mixture: {dataset_dir} is not a mixture, so its sources can have no weights")
        return TrainingSamples(dataset_dir, sequence_length, seed, window_length, packing)
    return MixedSamples(
        {source.name: source.dataset(dataset_dir) for source in sources},
        _stages(sources, mixture),
        sequence_length,
        seed,
        {source.name: source.epochs_at_most for source in sources},
        when_exhausted,
        packing,
        window_length,
    )


def read_mixture(
    dataset_dir: Path, window_length: int, mixture: Sequence[MixtureSpan], when_exhausted: WhenExhausted
) -> Mixture:
    """The mixture of the samples that `open_samples` opens, by windows, from manifests alone. Raises as that does."""
    entries, sources = read_dataset_manifest(dataset_dir).sources, []
    for entry in entries:
        num_tokens = read_dataset_manifest(entry.dataset(dataset_dir)).splits["train"].num_tokens
        sources.append(MixtureSource(entry.name, num_tokens, window_length, entry.epochs_at_most))
    return Mixture(sources, _stages(entries, mixture), when_exhausted)


def _stages(sources: Sequence[MixtureEntry], mixture: Sequence[MixtureSpan]) -> list[MixtureStage]:
    if mixture:
        return [MixtureStage(span.first_window, span.weights) for span in mixture]
    return [MixtureStage(0, {source.name: source.weight for source in sources})]
