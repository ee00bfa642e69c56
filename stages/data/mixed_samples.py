"""Training samples from several datasets that share one tokenizer, in the proportions of a mixture.

Shapes: B batch, T sequence.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from stages.data.dataset import require_one_tokenizer
from stages.data.mixture import NO_SOURCES, Mixture, MixtureSource, MixtureStage, WhenExhausted
from stages.data.packed_split import PackedSplit
from stages.data.sample_order import Blocks, Int64Array, WindowOrder
from stages.data.sample_range import EndlessSamples
from stages.data.source_errors import DataError
from stages.data.token_split import TokenSplit, require_tokens
from stages.data.window_pieces import WindowPieces
from stages.spec import Packing


class MixedSamples(EndlessSamples):
    """The train splits of several datasets as one sequence of samples, each of T + 1 tokens.

    A sample depends only on its index, the seed, the datasets and the stages. `Mixture` says which source it comes
    from. Within a source, the samples are those of TrainingSamples, in the same order: a mixture of one source is
    TrainingSamples. Sources take turns at whole windows: with a longer `window_length`, all pieces of a window
    (stages/data/window_pieces.py) come from one source, and `stages` start at windows.
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

        `window_length`: a multiple of `sequence_length`; by default that itself, which packing needs. Raises DataError
        if a dataset is shorter than a window, if their tokenizers differ, and as `Mixture` does.
        """
        if not datasets:
            raise DataError(NO_SOURCES)
        require_one_tokenizer(datasets)
        most, packs = epochs_at_most or {}, packing == "best_fit"
        window_length = window_length or sequence_length
        assert not packs or window_length == sequence_length, "packed windows are not read in pieces"
        self._length = sequence_length
        self._in_windows = WindowPieces.of(window_length, sequence_length)
        self._splits: list[TokenSplit | PackedSplit] = []
        sources = []
        for name, dataset_dir in datasets.items():
            split = PackedSplit(dataset_dir, sequence_length) if packs else TokenSplit(dataset_dir, "train")
            require_tokens(dataset_dir, "train", split.num_tokens, window_length, name)
            self._splits.append(split)
            sources.append(MixtureSource(name, split.num_tokens, window_length, most.get(name)))
        self.mixture = Mixture(sources, stages, when_exhausted)
        """The order of the sources, by windows."""
        num_tokens = [split.num_tokens for split in self._splits]
        order = WindowOrder(num_tokens, window_length, seed)
        self._num_tokens = np.array(num_tokens)
        self._place_of = order.windows if packs else order.starts
        end = None if self.mixture.end is None else self.mixture.end * self._in_windows.per_window
        self._blocks = Blocks(self.starts, end)
        self._expected = Blocks(self.starts, end)

    @property
    def names(self) -> list[str]:
        """The names of the sources."""
        return [source.name for source in self.mixture.sources]

    def epochs(self, num_samples: int) -> float:
        """How many passes over its data `num_samples` samples make of the source that is read most often."""
        return max(self.epochs_by_source(num_samples).values())

    def epochs_by_source(self, num_samples: int) -> dict[str, float]:
        """How many passes over each source `num_samples` samples make."""
        per_window = self._in_windows.per_window
        counts = zip(self.mixture.sources, self._counts(num_samples), strict=True)
        return {source.name: count / per_window / source.num_windows for source, count in counts}

    def tokens_by_source(self, first_index: int, count: int) -> dict[str, int]:
        """How many of the tokens that `count` samples from `first_index` on train on come from each source."""
        before, after = self._counts(first_index), self._counts(first_index + count)
        return {name: (b - a) * self._length for name, a, b in zip(self.names, before, after, strict=True)}

    def _counts(self, num_samples: int) -> list[int]:
        """How many of the first `num_samples` samples each source has."""
        return self.mixture.counts_of_pieces(num_samples, self._in_windows.per_window)

    def starts(self, first_index: int, count: int) -> Int64Array:
        """The place of each sample's source in `mixture.sources`, and where in its stream it starts: (count, 2).

        With packing, which window of its source it is, instead of where it starts.
        """
        sources, positions = self.mixture.locate(*self._in_windows.windows(first_index, count))
        places = self._place_of(sources, positions)
        if self._in_windows.per_window > 1:
            windows, offsets = self._in_windows.places(first_index, count)
            sources = sources[windows]
            places = (places[windows] + offsets) % self._num_tokens[sources]
        return np.stack([sources, places], axis=1)

    def turn(self, index: int) -> tuple[int, int]:
        """The place of a sample's source in `mixture.sources`, and the number of its window among that source's."""
        sources, positions = self.mixture.locate(index // self._in_windows.per_window, 1)
        return int(sources[0]), int(positions[0])

    def pieces(self, index: int) -> list[tuple[int, int]]:
        """Where each part of a sample starts in its source's stream, and its tokens."""
        [[source, place]] = self.starts(index, 1).tolist()
        split = self._splits[source]
        if isinstance(split, TokenSplit):
            return [(place, self._length + 1)]
        *pieces, (start, length) = split.pieces(place)
        return [*pieces, (start, length + 1)]

    def batch(self, first_index: int, count: int) -> Int64Array:
        """Samples `first_index` to `first_index + count`: (count, T + 1) int64."""
        tokens_BT = np.empty((count, self._length + 1), np.int64)
        rows = self._blocks.read(first_index, count).tolist()
        for row, (source, start) in zip(tokens_BT, rows, strict=True):
            self._splits[source].fill(row, start)
        return tokens_BT

    def expect(self, first_index: int, count: int) -> None:
        if any(split.is_remote for split in self._splits):
            for source, start in self._expected.read(first_index, count).tolist():
                self._splits[source].expect(start, self._length + 1)
