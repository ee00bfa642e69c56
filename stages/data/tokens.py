"""The tokens of one split of a dataset as one stream, memory-mapped or fetched from a URL on use."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.counted import counted
from stages.data.dataset import DatasetFile, DatasetPart, read_dataset_manifest, require_files, shard_tokens
from stages.data.errors import DataError
from stages.data.remote import RemoteFiles, RemoteReading, ShardCache, remote_reading
from stages.data.spec import SplitName

FETCHERS = 8
"""Remote shards that a process fetches ahead at a time."""
CHUNK = 1 << 20
"""Numbers that a pass over a whole file reads at a time."""

Int64Array = npt.NDArray[np.int64]


def joined(arrays: Sequence[npt.NDArray[Any]], shape: tuple[int, ...]) -> Int64Array:
    """The numbers of all arrays, as int64 in that shape."""
    numbers = np.empty(shape, np.int64)
    if arrays:
        np.concatenate(arrays, out=numbers.reshape(-1))
    return numbers


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
    """The shards of a split that lies at a URL, opened on use. Safe in threads."""

    def __init__(self, reading: RemoteReading, lengths: Mapping[DatasetFile, int], dtype: npt.DTypeLike) -> None:
        """`lengths`: the tokens of each shard to use. Raises DataError if the cache cannot hold a shard."""
        self._shards, self._lengths, self._dtype = list(lengths), list(lengths.values()), dtype
        self._cache = ShardCache(Path(reading.cache_dir), reading.cache_bytes)
        self._files = RemoteFiles(reading.url, reading.retry_seconds)
        largest = max((shard.bytes for shard in lengths), default=1)
        if largest > reading.cache_bytes:
            raise DataError(
                f"data.cache_bytes: {reading.cache_bytes:,} are fewer than the {largest:,} of the largest shard of"
                f" {reading.url}; make it as large as the dataset if you can"
            )
        self._most_expected = max(1, reading.cache_bytes // 2 // largest)
        self._open: dict[int, npt.NDArray[Any]] = {}
        self._expected: dict[int, Future[npt.NDArray[Any]]] = {}
        self._fetchers = ThreadPoolExecutor(FETCHERS, thread_name_prefix="fetch")

    def part(self, number: int) -> npt.NDArray[Any]:
        """The tokens of a shard, after it was fetched if it is not in the cache. Raises DataError and DiskFull."""
        if future := self._expected.pop(number, None):
            future.result()
        shard = self._open.get(number)
        return self._map(number) if shard is None else shard

    def _map(self, number: int) -> npt.NDArray[Any]:
        with self._cache.open(self._shards[number], self._files.fetch) as file:
            shard = np.asarray(np.memmap(file, self._dtype, "r", shape=(self._lengths[number],)))
        for other in list(self._open):  # a removed shard takes disk space while someone has it mapped
            if not self._cache.path(self._shards[other]).exists():
                self._open.pop(other, None)
        self._open[number] = shard
        return shard

    def expect(self, numbers: Iterable[int]) -> None:
        """Begins to fetch shards that are not open, as far as half of the cache holds them."""
        for number in numbers:
            unknown = number not in self._open and number not in self._expected
            if unknown and len(self._expected) < self._most_expected:
                self._expected[number] = self._fetchers.submit(self._map, number)


class TokenSplit:
    """The tokens of one split as one stream over all its shards, read from disk or from a URL on use."""

    def __init__(self, dataset_dir: Path, split: SplitName) -> None:
        """Memory-maps the shards, unless they are remote.

        Raises DataError if one is missing, if its size differs from the manifest, or if the cache cannot hold it.
        """
        manifest = read_dataset_manifest(dataset_dir)
        described, dtype = manifest.splits[split], f"<u{manifest.token_bytes}"
        self.bytes_per_token = described.num_bytes / max(1, described.num_tokens)
        """UTF-8 bytes of text per token. Ends of text count as tokens."""
        shards = {file: length for file in described.shards if (length := shard_tokens(file, manifest.token_bytes))}
        if sum(shards.values()) != described.num_tokens:
            raise DataError(f"{dataset_dir} is damaged: its {split} files do not hold {described.num_tokens} tokens")
        self._ends, reading = list(accumulate(shards.values())), remote_reading(dataset_dir)
        self._opened = (dataset_dir, split)
        self._remote = RemoteShards(reading, shards, dtype) if reading else None
        self._arrays: list[npt.NDArray[Any]] = []
        if not reading:
            require_files(dataset_dir, described.shards, hashes=False)
            self._arrays = [mapped(dataset_dir / file.name, dtype, count=length) for file, length in shards.items()]

    def __reduce__(self) -> tuple[type["TokenSplit"], tuple[Path, SplitName]]:
        """A pickle holds the path, not the tokens: whoever loads it opens the dataset again."""
        return TokenSplit, self._opened

    def _part(self, number: int) -> npt.NDArray[Any]:
        return self._remote.part(number) if self._remote else self._arrays[number]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, length: int) -> Int64Array:
        """Tokens `start` to `start + length`: (length,) int64. Raises IndexError beyond either end."""
        if not 0 <= start <= start + length <= len(self):
            raise IndexError(f"tokens {start} to {start + length} are outside a split of {len(self)} tokens")
        return joined(self.arrays([(start, length)] if length else []), (length,))

    def arrays(self, pieces: Iterable[tuple[int, int]]) -> list[npt.NDArray[Any]]:
        """Pieces of the stream, each (start, length), as the arrays that hold them. It continues at its start."""
        arrays = []
        for start, length in pieces:
            part = bisect_right(self._ends, start)
            first = start - (self._ends[part - 1] if part else 0)
            array = self._part(part)[first : first + length]
            arrays.append(array)
            while length := length - len(array):
                part = (part + 1) % len(self._ends)
                array = self._part(part)[:length]
                arrays.append(array)
        return arrays

    @property
    def is_remote(self) -> bool:
        """Whether the tokens lie at a URL."""
        return self._remote is not None

    def expect(self, start: int, length: int) -> None:
        """Begins to fetch `length` tokens from `start` on, if they are remote and not on this machine."""
        if self._remote is not None:
            ends = (start, (start + length - 1) % len(self))
            self._remote.expect({bisect_right(self._ends, place) for place in ends})


def require_tokens(part: DatasetPart, split: SplitName, sequence_length: int) -> None:
    """Raises DataError if a split is shorter than one sample."""
    if (num_tokens := part.manifest.splits[split].num_tokens) <= sequence_length:
        raise DataError(
            f"{f'data.mixture: {part.name!r}, ' if part.name else 'data.source: '}the {split} split of {part.directory}"
            f" has {counted(num_tokens, 'token')}, but one sample of {sequence_length} needs {sequence_length + 1}; use"
            f" more text, a shorter sequence{', or a larger data.validation_fraction' if split == 'validation' else ''}"
        )
