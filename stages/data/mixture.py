"""Which source a training sample comes from, and which of that source's samples it is: both from its index alone.

**The method.** A binary tree has the sources as leaves. At each inner node, where the lighter side has a of the node's
W parts of weight, floor((n a + floor(W / 2)) / W) of the node's first n samples go to the lighter side: n a / W,
rounded. This is exact integer arithmetic, needs no state, and takes O(depth) steps a sample. The tree is Huffman's:
its two lightest nodes are joined until one is left, so heavy sources are near the root.

**The bound.** Over any prefix of a stage, the number of samples of each source is within 1.68 of its
ideal share, however many sources there are. Rounding adds at most 1/2 at a node, and a node passes its own error on to
a child in proportion to the weights. A leaf of weight w_0 below nodes of weights w_1, w_2, ... thus has an error of at
most (1 + w_0/w_1 + w_0/w_2 + ...) / 2. In a Huffman tree, w_(i+2) >= w_(i+1) + w_i, so the w_i grow at least as fast as
the Fibonacci numbers, whose reciprocals sum up to 3.36.

**Rounded weights.** Integer weights are exactly in proportion to the weights in the schedule, unless that takes more
than `MOST_PARTS` parts: then each weight is rounded to a multiple of 1 in `ROUNDED_PARTS` (2^30), but to no less than
one. With n sources, this moves a source's share by less than n / 2^30.

**Pieces.** A stage may have other weights, and a source may be used up. Each such change starts a new piece with a tree
of its own; every source continues from where the pieces before left it. Over several pieces, their errors may add up.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from stages.counted import counted, plural
from stages.data.errors import DataError
from stages.data.tokens import Int64Array
from stages.spec import MixtureSpan

MOST_PARTS = 2**31
"""The largest sum of integer weights: the product of two such numbers still fits into 63 bits."""
ROUNDED_PARTS = MOST_PARTS // 2
"""What integer weights that would add up to more are rounded to. The rounded ones may add up to slightly more."""
MOST_SAMPLES = 2**62
WhenExhausted = Literal["stop", "others"]
_Count = TypeVar("_Count", int, Int64Array)


class MixtureSource(NamedTuple):
    """A source of a mixture."""

    name: str
    num_tokens: int
    window_length: int
    """Tokens of a sample: of a window, which all sources share."""
    epochs_at_most: float | None = None
    """How often the source may be read; None: as often as needed."""

    @property
    def num_windows(self) -> int:
        """Samples in an epoch."""
        return max(1, self.num_tokens // self.window_length)

    @property
    def most_samples(self) -> int | None:
        """The number of samples after which the source is used up."""
        return None if self.epochs_at_most is None else math.floor(_exact(self.epochs_at_most) * self.num_windows)


@dataclass(frozen=True)
class _Node:
    """A part of the tree: a source, or two nodes. `lighter_parts` of its `parts` belong to the lighter of the two."""

    parts: int
    name: str
    """Of the source, or of the lighter side: it orders nodes of equal weight, so that the order of the sources does not
    matter."""
    source: int
    children: "tuple[_Node, _Node] | None" = None

    def lighter(self, counts: _Count) -> _Count:
        """How many of the first `counts` samples here go to the lighter side. Exact: no product exceeds 63 bits."""
        assert self.children
        rounds, rest = divmod(counts, self.parts)
        return rounds * self.children[0].parts + (rest * self.children[0].parts + self.parts // 2) // self.parts

    def add_counts(self, num_samples: int, counts: list[int]) -> None:
        """Adds how many of the first `num_samples` samples each source below has."""
        if self.children is None:
            counts[self.source] += num_samples
            return
        on_lighter = self.lighter(num_samples)
        self.children[0].add_counts(on_lighter, counts)
        self.children[1].add_counts(num_samples - on_lighter, counts)

    def locate(self, first: int, rows: Int64Array, sources: Int64Array, positions: Int64Array) -> None:
        """Sets the source and position of consecutive samples of this node from `first` on, at `rows` of the result."""
        if not len(rows):
            return
        counts = np.arange(first, first + len(rows) + 1)
        if self.children is None:
            sources[rows], positions[rows] = self.source, counts[:-1]
            return
        on_lighter = self.lighter(counts)
        is_lighter = on_lighter[1:] > on_lighter[:-1]
        before = int(on_lighter[0])
        self.children[0].locate(before, rows[is_lighter], sources, positions)
        self.children[1].locate(first - before, rows[~is_lighter], sources, positions)


class _Piece(NamedTuple):
    """A range of samples with the same weights."""

    first_index: int
    counts_before: list[int]
    """The samples of each source before this piece."""
    weights: Mapping[int, int]
    """By the place of the source."""
    tree: _Node

    def counts(self, num_samples: int) -> list[int]:
        """The samples of each source after `num_samples` samples of this piece."""
        counts = list(self.counts_before)
        self.tree.add_counts(num_samples, counts)
        return counts

    def lasting(self, source: int, most_samples: int) -> int:
        """For how many samples this source lasts: until it would be read once more than it may be."""
        return bisect_right(range(MOST_SAMPLES), most_samples, key=lambda n: self.counts(n)[source]) - 1


class Mixture:
    """The order in which training samples take turns among sources. It has no state and constant size."""

    def __init__(
        self, sources: Sequence[MixtureSource], spans: Sequence[MixtureSpan], when_exhausted: WhenExhausted = "stop"
    ) -> None:
        """The mixture of `spans`, which begin at increasing windows, the first at 0; the last has no end.

        When a source has been read `epochs_at_most` times, the mixture ends (`stop`), or the other sources of the span
        take over in proportion to their weights (`others`) and it ends with the last of them.
        """
        self.sources = tuple(sources)
        self.end: int | None = None
        """The number of samples that the mixture has; None if it has no end."""
        self._pieces: list[_Piece] = []
        self._when_exhausted, self._used_up = when_exhausted, 0
        places = {source.name: place for place, source in enumerate(sources)}
        changes: list[tuple[int, dict[int, int]]] = []
        for span in spans:
            weights = _integer_weights({places[name]: weight for name, weight in span.weights.items() if weight})
            if not changes or weights != changes[-1][1]:
                changes.append((span.first_window, weights))
        counts = [0] * len(sources)
        for (first, weights), stop in zip(changes, [*(first for first, _ in changes[1:]), MOST_SAMPLES], strict=True):
            if self.end is None:
                counts = self._add_pieces(first, stop, weights, counts)

    def _add_pieces(self, first: int, stop: int, weights: dict[int, int], counts: list[int]) -> list[int]:
        """Adds the pieces of a span. Returns the samples of each source at its end."""
        most = [source.most_samples for source in self.sources]
        while first < stop:
            left = {source: weight for source, weight in weights.items() if counts[source] != most[source]}
            if not left or (self._when_exhausted == "stop" and len(left) < len(weights)):
                self.end, self._used_up = first, next(source for source in weights if source not in left)
                break
            piece = _Piece(first, counts, left, _tree(left, self.sources))
            self._pieces.append(piece)
            length = min([stop - first, *(piece.lasting(i, m) for i in left if (m := most[i]) is not None)])
            counts = piece.counts(length)
            first += length
        return counts

    def locate(self, first_index: int, count: int) -> tuple[Int64Array, Int64Array]:
        """The source of each of `count` samples from `first_index` on, as its place in `sources`, and its position.

        Positions count the samples of one source from 0, across stages. Both (count,) int64. Raises DataError beyond
        the end.
        """
        stop_index = first_index + count
        self.require(stop_index)
        sources, positions = np.empty(count, np.int64), np.empty(count, np.int64)
        starts = [piece.first_index for piece in self._pieces]
        for number in range(bisect_right(starts, first_index) - 1, len(starts)):
            piece, following = self._pieces[number], [*starts, stop_index][number + 1]
            first, stop = max(first_index, piece.first_index), min(stop_index, following)
            if first >= stop:
                break
            rows = np.arange(first - first_index, stop - first_index)
            piece.tree.locate(first - piece.first_index, rows, sources, positions)
            positions[rows] += np.array(piece.counts_before)[sources[rows]]
        return sources, positions

    def counts(self, num_samples: int, per_window: int = 1) -> list[int]:
        """How many of the first `num_samples` samples each source has, if a window is read in `per_window` samples.

        Raises DataError beyond the end.
        """
        windows, rest = divmod(num_samples, per_window)
        self.require(windows + bool(rest))
        piece = self._pieces[bisect_right(self._pieces, windows, key=lambda piece: piece.first_index) - 1]
        counts = [count * per_window for count in piece.counts(windows - piece.first_index)]
        if rest:
            counts[int(self.locate(windows, 1)[0][0])] += rest
        return counts

    def weights_before(self, num_samples: int) -> list[tuple[int, dict[str, int]]]:
        """What the first `num_samples` samples follow from: (first sample, integer weights by source) of each piece."""
        return [
            (piece.first_index, {self.sources[source].name: parts for source, parts in piece.weights.items()})
            for piece in self._pieces
            if piece.first_index < num_samples
        ]

    def require(self, num_samples: int) -> None:
        """Raises DataError with what to change if the mixture ends before it has `num_samples` samples."""
        if self.end is None or num_samples <= self.end:
            return
        source = self.sources[self._used_up]
        length, epochs = source.window_length, source.epochs_at_most or 0
        instead = ", or let the other sources take over (when_exhausted: others)"
        raise DataError(
            f"data.mixture: the sources last for {self.end * length:,} of {num_samples * length:,} training tokens:"
            f" {source.name!r} has {counted(source.num_tokens, 'token')} and may be read {epochs:g}"
            f" {plural(epochs, 'time')} (epochs_at_most); raise its epochs_at_most, lower its weight, or train on fewer"
            f" tokens{instead if self._when_exhausted == 'stop' else ''}"
        )


def _integer_weights(weights: Mapping[int, float]) -> dict[int, int]:
    """The weights, by source, as integers without a common factor. Decimal numbers keep their exact ratios.

    Only if the integers add up to more than `MOST_PARTS`, they are rounded to `ROUNDED_PARTS`.
    """
    exact = {source: _exact(weight) for source, weight in weights.items()}
    factor = math.lcm(*(weight.denominator for weight in exact.values()))
    parts = {source: int(weight * factor) for source, weight in exact.items()}
    divisor = math.gcd(*parts.values())
    total = sum(parts.values()) // divisor
    if total <= MOST_PARTS:
        return {source: each // divisor for source, each in parts.items()}
    return {source: max(1, round(Fraction(each * ROUNDED_PARTS, divisor * total))) for source, each in parts.items()}


def _exact(number: float) -> Fraction:
    """The decimal number that a user wrote, not its binary neighbour."""
    return Fraction(str(number))


def _tree(weights: Mapping[int, int], sources: Sequence[MixtureSource]) -> _Node:
    """Huffman's tree of the sources with these weights."""
    heap = [
        (parts, sources[source].name, _Node(parts, sources[source].name, source)) for source, parts in weights.items()
    ]
    heapify(heap)
    while len(heap) > 1:
        lighter, heavier = heappop(heap)[2], heappop(heap)[2]
        parts, name = lighter.parts + heavier.parts, lighter.name
        heappush(heap, (parts, name, _Node(parts, name, -1, (lighter, heavier))))
    return heap[0][2]
