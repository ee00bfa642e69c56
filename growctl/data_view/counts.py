"""Counts the lengths of documents, and which token ids occur, in bounded memory and exactly."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from stages.data.tokens import Int64Array

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)

DENSE = 1 << 20
"""Below this length, documents are counted by length; the few longer ones are listed. N tokens hold at most N / DENSE
of those, so that memory stays small for any dataset."""


@dataclass(frozen=True)
class LengthRange:
    """The documents of a range of lengths."""

    shortest: int
    """In tokens; a power of two."""
    longest: int
    """The last length of the range."""
    num_documents: int
    num_tokens: int


@dataclass(frozen=True)
class Percentile:
    """A percentile of the documents' lengths."""

    percent: int
    num_tokens: int
    """The smallest length that at least `percent` % of the documents do not exceed."""


@dataclass(frozen=True)
class Lengths:
    """How long the documents of a split are, in tokens with ends of text. All numbers are exact."""

    shortest: int | None
    """None without documents; so are `longest` and `mean`."""
    longest: int | None
    mean: float | None
    percentiles: tuple[Percentile, ...]
    histogram: tuple[LengthRange, ...]
    """From the range of the shortest to that of the longest, without gaps."""


def count_lengths(parts: Iterable[Int64Array]) -> Lengths:
    """The lengths of documents that come in `parts`: (N,) each, all at least 1."""
    dense, long_lengths = np.zeros(DENSE, np.int64), [np.empty(0, np.int64)]
    for part in parts:
        found = np.bincount(part[part < DENSE])
        dense[: len(found)] += found
        long_lengths.append(part[part >= DENSE])
    short = np.flatnonzero(dense)
    more, times = np.unique(np.concatenate(long_lengths), return_counts=True)
    values, counts = np.concatenate([short, more]), np.concatenate([dense[short], times])
    if not len(values):
        return Lengths(None, None, None, (), ())
    upto = np.cumsum(counts)
    ranks = [-(-percent * int(upto[-1]) // 100) for percent in PERCENTILES]
    percentiles = values[np.searchsorted(upto, ranks)].tolist()
    return Lengths(
        shortest=int(values[0]),
        longest=int(values[-1]),
        mean=int(values @ counts) / int(upto[-1]),
        percentiles=tuple(map(Percentile, PERCENTILES, percentiles)),
        histogram=tuple(_histogram(values, counts)),
    )


def _histogram(values: Int64Array, counts: Int64Array) -> Iterator[LengthRange]:
    for power in range(int(values[0]).bit_length(), int(values[-1]).bit_length() + 1):
        low, high = 1 << (power - 1), (1 << power) - 1
        here = slice(*np.searchsorted(values, [low, high + 1]))
        yield LengthRange(low, high, int(counts[here].sum()), int(values[here] @ counts[here]))


@dataclass(frozen=True)
class UsedIds:
    """Which token ids occur in the train split."""

    num_used: int
    """Different ids that occur, of the tokenizer's."""
    share_used: float
    """Of the tokenizer's ids, between 0 and 1."""
    vocab_size: int
    """Rows of the model's embedding: of the schedule's, or else as many as the tokenizer needs."""
    num_beyond: int
    """Tokens whose id has no row in the embedding. A model cannot train on them."""
    largest: int
    """The largest id that occurs."""


class IdCounter:
    """Counts token ids."""

    def __init__(self, tokenizer_size: int, vocab_size: int) -> None:
        self._tokenizer_size, self._vocab_size = tokenizer_size, vocab_size
        self._occurs = np.zeros(tokenizer_size, bool)
        self._beyond, self._largest = 0, 0

    def add(self, ids: Int64Array) -> None:
        """Counts `ids`: (N,), N at least 1."""
        largest = int(ids.max())
        self._largest = max(self._largest, largest)
        if largest >= self._vocab_size:
            self._beyond += int(np.count_nonzero(ids >= self._vocab_size))
        if largest >= self._tokenizer_size:
            ids = ids[ids < self._tokenizer_size]
        self._occurs[ids] = True

    def result(self) -> UsedIds:
        """What was counted."""
        used = int(np.count_nonzero(self._occurs))
        return UsedIds(used, used / self._tokenizer_size, self._vocab_size, self._beyond, self._largest)
