"""Which source a training sample comes from, and which of that source's samples it is: both from its index alone.

**The method.** A binary tree has the sources as leaves. At each inner node, where the lighter side has a of the node's
W parts of weight, floor((n a + floor(W / 2)) / W) of the node's first n samples go to the lighter side: n a / W,
rounded. This is exact integer arithmetic, needs no state, and takes O(depth) steps a sample. The tree is Huffman's:
its two lightest nodes are joined until one is left, so heavy sources are near the root.

**The bound.** Over any prefix of a stage, the number of samples of each source is within `SHARE_BOUND` (1.68) of its
ideal share, however many sources there are. Proof: let e be the error of a node, its number of samples minus its ideal
share. Rounding adds at most 1/2, and a node's own error passes on to its child in proportion to the weights:
e(child) <= e(node) w(child) / w(node) + 1/2, and e(root) = 0. A leaf with weight w_0 whose ancestors have the weights
w_1, w_2, ... thus has e <= (1 + w_0/w_1 + w_0/w_2 + ...) / 2. In a Huffman tree, w_(i+2) >= w_(i+1) + w_i: node i was
joined as one of the two lightest, so the sibling of node i + 1, which is there then or is made later, weighs no less.
Hence w_i >= F_(i+1) w_0 with the Fibonacci numbers 1, 1, 2, 3, 5, ...; their reciprocals sum up to 3.36, half of which
is 1.68.

**Rounded weights.** The ideal share is that of the integer weights. They are exactly in proportion to the weights in
the schedule, unless that takes more than `MOST_PARTS` parts: then each weight is rounded to a multiple of 1 in
`ROUNDED_PARTS` (2^30), but to no less than one. With n sources, this moves a source's share by less than n / 2^30. Over
10^11 samples, a source can thus have some hundred samples more or fewer than the weights in the schedule say.

**Pieces.** A stage may have other weights, and a source may be used up. Each such change starts a new piece with a tree
of its own; every source goes on from where the pieces before left it. Over several pieces, their errors may add up. A
stage with the weights of the one before goes on with its piece.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heapify, heappop, heappush
from typing import Literal

import numpy as np

from stages.counted import counted, plural
from stages.data.errors import DataError
from stages.data.tokens import Int64Array

SHARE_BOUND = 1.68
"""A source's samples over any prefix of one piece differ by no more than this from its ideal share."""
MOST_PARTS = 2**31
"""The largest sum of integer weights: the product of two such numbers still fits into 63 bits."""
ROUNDED_PARTS = MOST_PARTS // 2
"""What integer weights that would add up to more are rounded to. The rounded ones may add up to slightly more."""
MOST_SAMPLES = 2**62
NO_SOURCES = "data.mixture: has no sources; name at least one, with a weight above 0"
WhenExhausted = Literal["stop", "others"]


@dataclass(frozen=True)
class MixtureSource:
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
        if self.epochs_at_most is None:
            return None
        return math.floor(_exact(self.epochs_at_most) * self.num_windows)


@dataclass(frozen=True)
class MixtureStage:
    """The weights from a sample on."""

    first_index: int
    weights: Mapping[str, float]
    """By the name of the source, in any unit. Sources without a weight are not read in this stage."""


@dataclass(frozen=True)
class _Node:
    """A part of the tree: a source, or two nodes. `lighter_parts` of its `parts` belong to the lighter of the two."""

    parts: int
    name: str
    """Of the source, or of the lighter side: it orders nodes of equal weight, so that the order of the sources does not
    matter."""
    source: int
    children: "tuple[_Node, _Node] | None" = None

    def lighter(self, counts: Int64Array) -> Int64Array:
        """How many of the first `counts` samples here go to the lighter side. Exact: no product exceeds 63 bits."""
        assert self.children
        rounds, rest = np.divmod(counts, self.parts)
        return rounds * self.children[0].parts + (rest * self.children[0].parts + self.parts // 2) // self.parts

    def add_counts(self, num_samples: int, counts: list[int]) -> None:
        """Adds how many of the first `num_samples` samples each source below has."""
        if self.children is None:
            counts[self.source] += num_samples
            return
        lighter, heavier = self.children
        on_lighter = (num_samples * lighter.parts + self.parts // 2) // self.parts
        lighter.add_counts(on_lighter, counts)
        heavier.add_counts(num_samples - on_lighter, counts)

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


@dataclass(frozen=True)
class _Piece:
    """A range of samples with the same weights."""

    first_index: int
    counts_before: tuple[int, ...]
    """The samples of each source before this piece."""
    weights: Mapping[int, int]
    """By the place of the source."""
    tree: _Node

    def counts(self, num_samples: int) -> list[int]:
        """The samples of each source after `num_samples` samples of this piece."""
        counts = list(self.counts_before)
        self.tree.add_counts(num_samples, counts)
        return counts


class Mixture:
    """The order in which training samples take turns among sources. It has no state and constant size."""

    def __init__(
        self,
        sources: Sequence[MixtureSource],
        stages: Sequence[MixtureStage],
        when_exhausted: WhenExhausted = "stop",
    ) -> None:
        """The mixture of `stages`, which start at increasing indices, the first at 0; the last has no end.

        When a source has been read `epochs_at_most` times, the mixture ends (`stop`), or the other sources of the stage
        take over in proportion to their weights (`others`) and it ends with the last of them. Raises DataError for
        weights or sources that make no mixture.
        """
        self.sources = tuple(sources)
        _check_sources(self.sources)
        if not stages or stages[0].first_index != 0:
            raise DataError("data.mixture: the first stage of a mixture must start at sample 0")
        starts = [stage.first_index for stage in stages]
        if sorted(set(starts)) != starts:
            raise DataError(f"data.mixture: stages start at samples {starts}: each must start after the one before")
        self._stages, self._when_exhausted = tuple(stages), when_exhausted
        self._pieces: list[_Piece] = []
        self.end: int | None = None
        """The number of samples that the mixture has; None if it has no end."""
        counts = [0] * len(self.sources)
        weights = [_integer_weights(stage.weights, [source.name for source in self.sources]) for stage in stages]
        changes = [number for number in range(len(stages)) if number == 0 or weights[number] != weights[number - 1]]
        for number, stop in zip(changes, [*(starts[change] for change in changes[1:]), MOST_SAMPLES], strict=True):
            if self.end is None:
                counts = self._add_pieces(starts[number], stop, weights[number], counts)

    def _add_pieces(self, first: int, stop: int, weights: dict[int, int], counts: list[int]) -> list[int]:
        """Adds the pieces of a stage. Returns the samples of each source at its end."""
        most = [source.most_samples for source in self.sources]
        while first < stop:
            left = {source: weight for source, weight in weights.items() if counts[source] != most[source]}
            if not left or (self._when_exhausted == "stop" and len(left) < len(weights)):
                self.end = first
                break
            piece = _Piece(first, tuple(counts), left, _tree(left, self.sources))
            self._pieces.append(piece)
            length = min([stop - first, *(_lasting(piece, i, m) for i in left if (m := most[i]) is not None)])
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

    def counts(self, num_samples: int) -> list[int]:
        """How many of the first `num_samples` samples each source has. Raises DataError beyond the end."""
        self.require(num_samples)
        starts = [piece.first_index for piece in self._pieces]
        piece = self._pieces[bisect_right(starts, num_samples) - 1]
        return piece.counts(num_samples - piece.first_index)

    def counts_of_pieces(self, num_samples: int, per_window: int) -> list[int]:
        """The same if each sample here is a window that is read in `per_window` pieces, and a sample is one of them."""
        windows, pieces = divmod(num_samples, per_window)
        counts = [count * per_window for count in self.counts(windows)]
        if pieces:
            counts[int(self.locate(windows, 1)[0][0])] += pieces
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
        endless = Mixture([replace(source, epochs_at_most=None) for source in self.sources], self._stages)
        limited = [
            (Fraction(needed, most), source, needed)
            for source, needed in zip(self.sources, endless.counts(num_samples), strict=True)
            if (most := source.most_samples) is not None
        ]
        _, source, needed = max(limited, key=lambda each: (each[0], each[1].name))
        epochs, length = source.epochs_at_most or 0, source.window_length
        instead = ", or let the other sources take over (when_exhausted: others)"
        raise DataError(
            f"data.mixture: the sources last for {self.end * length:,} of {num_samples * length:,} training tokens:"
            f" {source.name!r} has {counted(source.num_tokens, 'token')}, may be read {epochs:g}"
            f" {plural(epochs, 'time')} (epochs_at_most), and would be read {needed / source.num_windows:.2f} times;"
            " raise its epochs_at_most, lower its weight, or train on fewer tokens"
            f"{instead if self._when_exhausted == 'stop' else ''}"
        )


def _check_sources(sources: Sequence[MixtureSource]) -> None:
    names = [source.name for source in sources]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"data.mixture: {twice[0]!r} is named more than once; give it one entry with the summed weight")
    for source in sources:
        epochs = source.epochs_at_most
        if epochs is not None and not (math.isfinite(epochs) and epochs > 0 and source.most_samples):
            raise DataError(
                f"data.mixture: epochs_at_most of {source.name!r} is {epochs}; it must be {1 / source.num_windows:g} or"
                f" more, one of its {counted(source.num_windows, 'window')}"
            )


def _integer_weights(weights: Mapping[str, float], names: Sequence[str]) -> dict[int, int]:
    """The weights as integers without a common factor, by the place of their source in `names`.

    Decimal numbers keep their exact ratios. Only if the integers add up to more than `MOST_PARTS`, they are rounded to
    `ROUNDED_PARTS`.
    """
    if not weights:
        raise DataError(NO_SOURCES)
    for name, weight in weights.items():
        if name not in names:
            raise DataError(f"data.mixture: {name!r} is none of its sources, which are {', '.join(sorted(names))}")
        if not (math.isfinite(weight) and weight > 0):
            raise DataError(
                f"data.mixture: the weight of {name!r} is {weight}; it must be a finite number above 0. To pause a"
                " source, leave it out"
            )
    exact = {names.index(name): _exact(weight) for name, weight in weights.items()}
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


def _lasting(piece: _Piece, source: int, most_samples: int) -> int:
    """For how many samples of a piece this source lasts: until it would be read once more than it may be."""
    return bisect_right(range(MOST_SAMPLES), most_samples, key=lambda n: piece.counts(n)[source]) - 1
