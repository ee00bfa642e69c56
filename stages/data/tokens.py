"""The tokens of one split of a dataset as one stream, memory-mapped or fetched from a URL on use."""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.counted import counted
from stages.data.dataset import DatasetFile, read_dataset_manifest, require_size, shard_tokens
from stages.data.errors import DataError
from stages.data.remote import RemoteReading, remote_reading
from stages.data.spec import SplitName

FETCHERS = 8
"""Remote shards that a process fetches ahead at a time."""
CHUNK = 1 << 20
"""Numbers that a pass over a whole file reads at a time."""

Int64Array = npt.NDArray[np.int64]


class Numbers:
    """Arrays, one after another, as one sequence of integers, of which only what is read comes into memory."""

    def __init__(self, lengths: Iterable[int], part: Callable[[int], npt.NDArray[Any]]) -> None:
        """`part(number)` gives an array, which has `lengths[number]` numbers; it is called whenever one is read."""
        self._ends = list(accumulate(lengths))
        self._part = part

    @classmethod
    def join(cls, parts: Sequence[npt.NDArray[Any]]) -> "Numbers":
        """The sequence of arrays that are there already."""
        return cls(map(len, parts), parts.__getitem__)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, length: int) -> Int64Array:
        """Numbers `start` to `start + length`: (length,) int64. Raises IndexError beyond either end."""
        if not 0 <= start <= start + length <= len(self):
            raise IndexError(f"tokens {start} to {start + length} are outside a split of {len(self)} tokens")
        numbers = np.empty(length, np.int64)
        self.fill(numbers, start)
        return numbers

    def fill(self, numbers: Int64Array, start: int) -> None:
        """Fills `numbers` with the sequence from `start`, a place in it, on. The sequence goes on at its start."""
        part, first = self._place(start)
        filled = 0
        while filled < len(numbers):
            array = self._part(part)[first : first + len(numbers) - filled]
            numbers[filled : filled + len(array)] = array
            filled += len(array)
            part, first = (part + 1) % len(self._ends), 0

    def fill_pieces(self, numbers: Int64Array, pieces: Iterable[tuple[int, int]]) -> None:
        """Fills `numbers` with pieces of the sequence, each (start, length), in one call of numpy."""
        arrays: list[npt.NDArray[Any]] = []
        for start, length in pieces:
            part, first = self._place(start)
            array = self._part(part)[first : first + length]
            if len(array) < length:  # it goes on in the next part
                array = np.empty(length, np.int64)
                self.fill(array, start)
            arrays.append(array)
        if arrays:
            np.concatenate(arrays, out=numbers)

    def parts(self, start: int, length: int) -> Iterator[int]:
        """The parts that `length` numbers from `start` on lie in."""
        part, first = self._place(start)
        while length > 0:
            yield part
            length -= self._ends[part] - (self._ends[part - 1] if part else 0) - first
            part, first = (part + 1) % len(self._ends), 0

    def _place(self, start: int) -> tuple[int, int]:
        """The part that holds the number at `start`, and where in it."""
        part = bisect_right(self._ends, start)
        return part, start - (self._ends[part - 1] if part else 0)


def mapped(path: Path, dtype: npt.DTypeLike, offset: int = 0, count: int | None = None) -> npt.NDArray[Any]:
    """`count` numbers of a file from the byte `offset` on, read from disk on use; by default, all to the file's end.

    Raises DataError if the file cannot be read. It must be long enough.
    """
    try:
        if count is None:
            count = (path.stat().st_size - offset) // np.dtype(dtype).itemsize
        # A plain array on the mapped memory: slicing a memmap takes far longer than copying a sample.
        return np.asarray(np.memmap(path, dtype, "r", offset, (count,))) if count else np.empty(0, dtype)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def chunks(stop: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """The bounds of consecutive ranges of up to CHUNK numbers that cover `start` to `stop`."""
    for first in range(start, stop, CHUNK):
        yield first, min(first + CHUNK, stop)


class RemoteShards:
    """The shards of a split that lies at a URL, opened on use. Safe in threads and after a fork."""

    def __init__(
        self, reading: RemoteReading, shards: Sequence[DatasetFile], lengths: Sequence[int], dtype: npt.DTypeLike
    ) -> None:
        """`lengths`: the tokens of each shard to use. Raises DataError if the cache cannot hold a shard."""
        self._shards, self._lengths, self._dtype = shards, lengths, dtype
        self._cache, self._fetch = reading.cache(), reading.files().fetch
        largest = max((shard.bytes for shard in shards), default=1)
        if largest > reading.cache_bytes:
            raise DataError(
                f"data.cache_bytes: {reading.cache_bytes:,} are fewer than the {largest:,} of the largest shard of"
                f" {reading.url}; make it as large as the dataset if you can"
            )
        self._most_expected = max(1, reading.cache_bytes // 2 // largest)
        self._open: dict[int, npt.NDArray[Any]] = {}
        self._start_process()

    def _start_process(self) -> None:
        """What a forked process cannot share with its parent."""
        self._process = os.getpid()
        self._expected: dict[int, Future[None]] = {}
        self._fetchers = ThreadPoolExecutor(FETCHERS, thread_name_prefix="fetch")

    def part(self, number: int) -> npt.NDArray[Any]:
        """The tokens of a shard, after it was fetched if it is not in the cache. Raises DataError and CacheFull."""
        shard = self._open.get(number)
        return self._opened(number) if shard is None else shard

    def _opened(self, number: int) -> npt.NDArray[Any]:
        if self._process == os.getpid() and (future := self._expected.pop(number, None)):
            future.result()
        shard = self._cache.get(
            self._shards[number],
            self._fetch,
            lambda path: np.asarray(np.memmap(path, self._dtype, "r", shape=(self._lengths[number],))),
        )
        for other in list(self._open):  # a removed shard takes disk space while someone has it mapped
            if not self._cache.path(self._shards[other]).exists():
                self._open.pop(other, None)
        self._open[number] = shard
        return shard

    def expect(self, numbers: Iterable[int]) -> None:
        """Begins to fetch shards that are not in the cache, as far as half of it holds them."""
        if self._process != os.getpid():
            self._start_process()
        for number in numbers:
            unknown = number not in self._open and number not in self._expected
            if unknown and len(self._expected) < self._most_expected:
                self._expected[number] = self._fetchers.submit(
                    self._cache.get, self._shards[number], self._fetch, lambda path: None
                )


class TokenSplit:
    """The tokens of one split as one stream over all its shards, read from disk or from a URL on use."""

    def __init__(self, dataset_dir: Path, split: SplitName) -> None:
        """Memory-maps the shards, unless they are remote.

        Raises DataError if one is missing, if its size differs from the manifest, or if the cache cannot hold it.
        """
        manifest = read_dataset_manifest(dataset_dir)
        described = manifest.splits[split]
        self.num_tokens = described.num_tokens
        self.bytes_per_token = described.num_bytes / max(1, described.num_tokens)
        """UTF-8 bytes of text per token. Ends of text count as tokens."""
        lengths = [shard_tokens(file, manifest.token_bytes) for file in described.shards]
        if sum(lengths) != described.num_tokens or any(file.bytes % manifest.token_bytes for file in described.shards):
            raise DataError(f"{dataset_dir} is damaged: its {split} files do not hold {described.num_tokens} tokens")
        self._opened, dtype = (dataset_dir, split), f"<u{manifest.token_bytes}"
        self._remote: RemoteShards | None = None
        if reading := remote_reading(dataset_dir):
            filled = [(file, length) for file, length in zip(described.shards, lengths, strict=True) if length]
            self._remote = RemoteShards(reading, [file for file, _ in filled], [length for _, length in filled], dtype)
            self.numbers = Numbers((length for _, length in filled), self._remote.part)
        else:
            for file in described.shards:
                require_size(dataset_dir, file)
            named = zip(described.shards, lengths, strict=True)
            self.numbers = Numbers.join([mapped(dataset_dir / file.name, dtype, count=n) for file, n in named])
        self.fill = self.numbers.fill
        """Fills an array from a position on; the stream goes on at its start."""
        self.read = self.numbers.read
        """Reads (start, length): (length,) int64. Raises IndexError beyond either end."""

    def fill_rows(self, tokens_BT: Int64Array, starts: Sequence[int]) -> None:
        """Fills each row with the stream from a position on; the stream goes on at its start."""
        for row, start in zip(tokens_BT, starts, strict=True):
            self.fill(row, start)

    def pieces(self, start: int, length: int) -> list[tuple[int, int]]:
        """Where each part of a row starts in the stream, and its tokens: one part."""
        return [(start, length)]

    @property
    def is_remote(self) -> bool:
        """Whether the tokens lie at a URL."""
        return self._remote is not None

    def expect(self, start: int, length: int) -> None:
        """Begins to fetch `length` tokens from `start` on, if they are remote and not on this machine."""
        if self._remote is not None:
            self._remote.expect(self.numbers.parts(start, length))

    def __reduce__(self) -> tuple[type["TokenSplit"], tuple[Path, SplitName]]:
        """A pickle holds the path, not the tokens: whoever loads it opens the dataset again."""
        return TokenSplit, self._opened


def require_tokens(
    dataset_dir: Path, split: SplitName, num_tokens: int, sequence_length: int, source: str | None = None
) -> None:
    """Raises DataError if a split is shorter than one sample. `source` is its name in a mixture."""
    if num_tokens <= sequence_length:
        which = f"data.mixture: {source!r}, " if source else "data.source: "
        raise DataError(
            f"{which}the {split} split of {dataset_dir} has {counted(num_tokens, 'token')}, but one sample of"
            f" {sequence_length} needs {sequence_length + 1}; use more text, a shorter sequence"
            f"{', or a larger data.validation_fraction' if split == 'validation' else ''}"
        )
