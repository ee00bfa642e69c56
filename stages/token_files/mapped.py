"""Memory-mapped numbers: several files as one sequence, of which only what is read comes into memory."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from model.errors import UserError

CHUNK = 1 << 20
"""Numbers that a pass over a whole file reads at a time."""

Int64Array = npt.NDArray[np.int64]


class TokenFileError(UserError):
    """A file of tokens, or its index, that is damaged or cannot be used. The message names the file."""


class Numbers(ABC):
    """Parts, one after another, as one sequence of integers, wherever they lie."""

    def __init__(self, lengths: Iterable[int]) -> None:
        """`lengths` of the parts."""
        self._ends = list(accumulate(lengths))

    @abstractmethod
    def fill(self, numbers: Int64Array, start: int) -> None:
        """Fills `numbers` with the sequence from `start`, a place in it, on. The sequence goes on at its start."""

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, length: int) -> Int64Array:
        """Numbers `start` to `start + length`: (length,) int64. Raises IndexError beyond either end."""
        if not 0 <= start <= start + length <= len(self):
            raise IndexError(f"tokens {start} to {start + length} are outside a split of {len(self)} tokens")
        numbers = np.empty(length, np.int64)
        self.fill(numbers, start)
        return numbers


class MappedNumbers(Numbers):
    """Arrays, one after another, as one sequence of integers."""

    def __init__(self, parts: Sequence[npt.NDArray[Any]], bases: Sequence[int] | None = None) -> None:
        """`bases` are added to the numbers of each part; none by default."""
        super().__init__(len(part) for part in parts)
        self._parts = parts
        self._bases = bases or [0] * len(parts)

    def fill(self, numbers: Int64Array, start: int) -> None:
        """Fills `numbers` with the sequence from `start`, a place in it, on. The sequence goes on at its start."""
        part = bisect_right(self._ends, start)
        first = start - (self._ends[part - 1] if part else 0)
        filled = 0
        while filled < len(numbers):
            found = self._parts[part][first : first + len(numbers) - filled]
            numbers[filled : filled + len(found)] = found
            if base := self._bases[part]:
                numbers[filled : filled + len(found)] += base
            filled += len(found)
            part, first = (part + 1) % len(self._parts), 0

    def fill_pieces(self, numbers: Int64Array, pieces: Iterable[tuple[int, int]]) -> None:
        """Fills `numbers` with pieces of the sequence, each (start, length), in one call of numpy."""
        found: list[npt.NDArray[Any]] = []
        for start, length in pieces:
            part = bisect_right(self._ends, start)
            first = start - (self._ends[part - 1] if part else 0)
            piece = self._parts[part][first : first + length]
            if len(piece) < length:  # it goes on in the next part
                piece = np.empty(length, np.int64)
                self.fill(piece, start)
            elif base := self._bases[part]:
                piece = piece + base
            found.append(piece)
        if found:
            np.concatenate(found, out=numbers)

    def take(self, positions: Int64Array) -> Int64Array:
        """The numbers at `positions`, each within range: (len(positions),) int64."""
        numbers = np.empty(len(positions), np.int64)
        found_in = np.searchsorted(self._ends, positions, side="right")
        for part in np.unique(found_in).tolist():
            here = found_in == part
            first = self._ends[part - 1] if part else 0
            numbers[here] = self._parts[part][positions[here] - first].astype(np.int64) + self._bases[part]
        return numbers


def mapped(path: Path, dtype: npt.DTypeLike, offset: int = 0, count: int | None = None) -> npt.NDArray[Any]:
    """`count` numbers of a file from the byte `offset` on, read from disk on use; by default, all to the file's end.

    Raises TokenFileError if the file cannot be read. It must be long enough.
    """
    try:
        if count is None:
            count = (path.stat().st_size - offset) // np.dtype(dtype).itemsize
        # A plain array on the mapped memory: slicing a memmap takes far longer than copying a sample.
        return np.asarray(np.memmap(path, dtype, "r", offset, (count,))) if count else np.empty(0, dtype)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> TokenFileError:
    """The error for a file that cannot be read."""
    return TokenFileError(f"{path} cannot be read: {error.strerror}")


def file_bytes(path: Path) -> int:
    """The size of a file. Raises TokenFileError if it is missing or no file."""
    try:
        if not path.is_file():
            raise TokenFileError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


def chunks(stop: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """The bounds of consecutive ranges of up to CHUNK numbers that cover `start` to `stop`."""
    for first in range(start, stop, CHUNK):
        yield first, min(first + CHUNK, stop)
