"""Which window of a source a sample is, computed from the sample's position: a permutation that is not stored.

An epoch joins a source's stream end to start, cuts it into windows of L tokens, and uses every window once, in a
pseudo-random order. The order and the first cut differ between epochs. L is the longest context of a ladder: a stage at
context T, a divisor of L, reads each window in L / T pieces, one after another: its sample i is piece i mod (L / T) of
window i div (L / T). Wherever a stage ends in the order, the next one begins there, whatever its context; so no token
is read twice within an epoch.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from stages.data.tokens import Int64Array

PERMUTATION_ROUNDS = 6
BLOCK_SAMPLES = 4096
"""Samples whose order is computed at once while a program reads in order. Larger blocks hardly cost less a sample."""

UInt64Array = npt.NDArray[np.uint64]


class WindowOrder:
    """The order of windows in each of several sources, all with the same seed."""

    def __init__(self, num_tokens: Sequence[int], window_length: int, seed: int) -> None:
        """`num_tokens`: the length of each source's stream; each holds at least one window."""
        self._length = np.uint64(window_length)
        self._num_tokens = np.array(num_tokens, np.uint64)
        self._num_windows = self._num_tokens // self._length
        half_bits = [max(1, ((int(size) - 1).bit_length() + 1) // 2) for size in self._num_windows]
        self._half_bits = np.array(half_bits, np.uint64)
        self._seed = _scatter(np.array([seed % 2**64], np.uint64))

    def starts(self, sources: Int64Array, positions: Int64Array) -> Int64Array:
        """Where samples start in their source's stream: (N,). `positions` count the samples of one source."""
        windows, keys = self._windows(sources, positions)
        num_tokens = self._num_tokens[sources]
        return ((_scatter(keys) % num_tokens + windows * self._length) % num_tokens).astype(np.int64)

    def windows(self, sources: Int64Array, positions: Int64Array) -> Int64Array:
        """Which of its source's windows samples are, where these are the same in every epoch: (N,)."""
        return self._windows(sources, positions)[0].astype(np.int64)

    def _windows(self, sources: Int64Array, positions: Int64Array) -> tuple[UInt64Array, UInt64Array]:
        """The windows, and a key for each sample's epoch."""
        num_windows = self._num_windows[sources]
        epochs, places = np.divmod(positions.astype(np.uint64), num_windows)
        keys = _scatter(self._seed ^ epochs)
        return _permute(places, num_windows, self._half_bits[sources], keys), keys


class Blocks:
    """Calls a function of a range of indices for whole blocks, once a program reads in order.

    One call costs about as much for one index as for hundreds. The second request in a row that lies in the same block
    computes the block, which is kept until the next one. All other requests compute only what they ask for, so reading
    at random indices does not suffer. The results are the same.
    """

    def __init__(self, compute: Callable[[int, int], Int64Array], end: int | None = None) -> None:
        """`compute(first_index, count)` returns an array with a row for each index, or raises beyond `end`."""
        self._compute, self._end = compute, end
        self._last_number = -1
        self._block: tuple[int, Int64Array | None] = (-1, None)

    def read(self, first_index: int, count: int) -> Int64Array:
        """The rows of `count` indices from `first_index` on."""
        number, place = divmod(first_index, BLOCK_SAMPLES)
        block_start = number * BLOCK_SAMPLES
        size = BLOCK_SAMPLES if self._end is None else min(BLOCK_SAMPLES, self._end - block_start)
        if place + count > size:
            return self._compute(first_index, count)
        kept, rows = self._block  # one assignment below, so that threads never see halves of two blocks
        if kept != number or rows is None:
            if self._last_number != number:
                self._last_number = number
                return self._compute(first_index, count)
            rows = self._compute(block_start, size)
            self._block = (number, rows)
        return rows[place : place + count]


def _scatter(values: UInt64Array) -> UInt64Array:
    """SplitMix64 (Steele, Lea and Flood, 2014): a bijection of 64-bit integers that separates neighbours."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _permute(places: UInt64Array, sizes: UInt64Array, half_bits: UInt64Array, keys: UInt64Array) -> UInt64Array:
    """Applies permutations of range(`sizes`), a different one for each key, to `places`: all (N,), in O(N) memory.

    A Feistel network permutes range(4 ** half_bits), where 4 ** half_bits is the next power of four from the size on.
    Results outside range(size) go through the network again until they fall inside (cycle walking): on average at most
    four times.
    """
    round_keys = []
    for _ in range(PERMUTATION_ROUNDS):
        keys = _scatter(keys)
        round_keys.append(keys)
    permuted, key_RN = places.copy(), np.stack(round_keys)
    outside = np.arange(len(permuted))
    while len(outside):
        bits = half_bits[outside]
        mask = (np.uint64(1) << bits) - np.uint64(1)
        left, right = permuted[outside] >> bits, permuted[outside] & mask
        for key_N in key_RN[:, outside]:
            left, right = right, left ^ (_scatter(key_N ^ right) & mask)
        permuted[outside] = (left << bits) | right
        outside = outside[permuted[outside] >= sizes[outside]]
    return permuted
