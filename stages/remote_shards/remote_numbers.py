"""Tokens of remote shards as one sequence, read in ranges through a cache: MappedNumbers of files elsewhere."""

import os
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from stages.remote_shards.range_cache import RangeCache
from stages.remote_shards.range_hashes import HASH_BYTES
from stages.token_files.mapped import Int64Array, Numbers

FETCHERS = 16
"""Ranges that a process fetches at a time."""

MOST_MAPPED = 8192
"""Ranges that a process keeps mapped at most: an eighth of the maps that Linux allows a process."""

MAPPED_SHARE = 8
"""A process maps at most one eighth of the cache: a removed range takes disk space while someone has it mapped."""

_ALL: "WeakSet[RemoteNumbers]" = WeakSet()
"""All sequences of this process, which share the limits."""


class Fetch(Protocol):
    """Fetches a range of a file, checks its sha256 and retries; raises the error that the user shall see."""

    def __call__(self, name: str, start: int, stop: int, sha256: str) -> bytes: ...


@dataclass(frozen=True)
class RemoteShard:
    """A file of tokens that lies elsewhere."""

    name: str
    """Its path within the dataset."""

    num_bytes: int
    num_tokens: int
    """Tokens that belong to the split, from the start on."""

    hashes: bytes
    """The sha256 of each of its ranges, one after another."""


class RemoteNumbers(Numbers):
    """The tokens of remote shards, one shard after another, as one sequence of integers. Safe in threads."""

    def __init__(
        self, shards: Sequence[RemoteShard], dtype: npt.DTypeLike, range_bytes: int, fetch: Fetch, cache: RangeCache
    ) -> None:
        """`range_bytes`, of which each shard's `hashes` are, must be a multiple of the size of `dtype`."""
        super().__init__(shard.num_tokens for shard in shards)
        self._shards = shards
        self._dtype = np.dtype(dtype)
        self._range_bytes = range_bytes
        self._range_tokens = range_bytes // self._dtype.itemsize
        self._fetch, self._cache = fetch, cache
        self._most_mapped = max(1, min(MOST_MAPPED, cache.limit_bytes // range_bytes // MAPPED_SHARE))
        self._mapped: dict[tuple[int, int], npt.NDArray[Any]] = {}
        """By shard and range. Once there are as many as allowed, the rest is read from the cache's files."""
        self._is_full = False
        _ALL.add(self)
        self._start_process()

    def _start_process(self) -> None:
        """What a forked process cannot share with its parent."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._fetching: dict[tuple[int, int], Future[bytes]] = {}
        self._fetchers = ThreadPoolExecutor(FETCHERS, thread_name_prefix="fetch")

    def fill(self, numbers: Int64Array, start: int) -> None:
        """Fills `numbers` with the sequence from `start`, a place in it, on. The sequence goes on at its start.

        Waits for ranges that are not on this machine. Raises what `fetch` raises, and CacheFull.
        """
        shard = bisect_right(self._ends, start)
        first = start - (self._ends[shard - 1] if shard else 0)
        filled, wanted = 0, len(numbers)
        while filled < wanted:
            number, place = divmod(first, self._range_tokens)
            array = self._mapped.get((shard, number))
            stop = min(place + wanted - filled, self._shards[shard].num_tokens - first + place)
            found = self._part(shard, number, place, stop) if array is None else array[place:stop]
            numbers[filled : filled + len(found)] = found
            filled += len(found)
            first += len(found)
            if first == self._shards[shard].num_tokens:
                shard, first = (shard + 1) % len(self._shards), 0

    def fill_pieces(self, numbers: Int64Array, pieces: Iterable[tuple[int, int]]) -> None:
        """Fills `numbers` with pieces of the sequence, each (start, length). Waits and raises as `fill` does."""
        place = 0
        for start, length in pieces:
            self.fill(numbers[place : place + length], start)
            place += length

    def expect(self, start: int, length: int) -> None:
        """Begins to fetch the ranges of `length` numbers from `start` on that are not on this machine."""
        shard = bisect_right(self._ends, start)
        first = start - (self._ends[shard - 1] if shard else 0)
        while length > 0:
            num_tokens = self._shards[shard].num_tokens
            stop = min(first + length, num_tokens)
            for number in range(first // self._range_tokens, (stop - 1) // self._range_tokens + 1):
                if (shard, number) not in self._mapped and not self._cache.has(self._sha256(shard, number)):
                    self._future(shard, number)
            length -= stop - first
            shard, first = (shard + 1) % len(self._shards), 0

    def _sha256(self, shard: int, number: int) -> str:
        return self._shards[shard].hashes[number * HASH_BYTES : (number + 1) * HASH_BYTES].hex()

    def _bounds(self, shard: int, number: int) -> tuple[int, int]:
        start = number * self._range_bytes
        return start, min(start + self._range_bytes, self._shards[shard].num_bytes)

    def _part(self, shard: int, number: int, first: int, stop: int) -> npt.NDArray[Any]:
        """Tokens `first` to `stop` of a range that is not mapped, as far as it has them."""
        if self._is_full:
            size = self._dtype.itemsize
            content = self._cache.read(self._sha256(shard, number), first * size, min(stop * size, self._range_bytes))
            if content is not None:
                return np.frombuffer(content, self._dtype)
        return self._range(shard, number)[first:stop]

    def _range(self, shard: int, number: int) -> npt.NDArray[Any]:
        """The tokens of a range: mapped from the cache, or else from memory right after they were fetched."""
        sha256, (start, stop) = self._sha256(shard, number), self._bounds(shard, number)
        array = self._cache.open(sha256, stop - start, self._dtype)
        if array is None:
            content = self._future(shard, number).result()
            array = self._cache.open(sha256, stop - start, self._dtype)
            if array is None:  # the cache is too small to keep it for even that long
                return np.frombuffer(content, self._dtype)
        self._is_full = sum(len(each._mapped) for each in list(_ALL)) >= self._most_mapped
        if not self._is_full:
            self._mapped[shard, number] = array
        return array

    def _future(self, shard: int, number: int) -> "Future[bytes]":
        """The range that is being fetched, by us or by a thread before us."""
        if self._process != os.getpid():
            self._start_process()
        with self._lock:
            future = self._fetching.get((shard, number))
            if future is None:
                future = self._fetching[shard, number] = self._fetchers.submit(self._fetched, shard, number)
            return future

    def _fetched(self, shard: int, number: int) -> bytes:
        """Fetches a range and stores it in the cache, unless somebody else did in the meantime."""
        try:
            sha256, (start, stop) = self._sha256(shard, number), self._bounds(shard, number)
            if (found := self._cache.open(sha256, stop - start, self._dtype)) is not None:
                return found.tobytes()
            content = self._fetch(self._shards[shard].name, start, stop, sha256)
            self._cache.store(sha256, content)
            return content
        finally:
            with self._lock:
                self._fetching.pop((shard, number), None)
