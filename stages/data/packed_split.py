"""A train split as windows that best-fit packing makes (stages/data/packing.py), from an index file beside its tokens.

The index is computed once for a dataset and a window length. It follows from the dataset alone: one that is missing or
broken is made again. Several processes may make it at once; each writes a file of its own and renames it.
"""

import os
import socket
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

from model.strict import Strict
from stages.data.dataset import read_dataset_manifest
from stages.data.document_ends import DocumentEnds
from stages.data.packing import pack
from stages.data.sample_order import Int64Array
from stages.data.source_errors import DataError
from stages.data.token_split import TokenSplit, require_tokens
from stages.token_files.mapped import mapped

FORMAT_VERSION = 1
HEADER_BYTES = 1024
"""The header is JSON, padded with spaces."""

PIECE = np.dtype([("start", "<u8"), ("length", "<u4")])
FIRST = np.dtype("<u8")


class PackingFacts(Strict):
    """The header of an index file. What follows are the number of each window's first piece, and then the pieces."""

    format_version: int
    fingerprint: str
    """Of the dataset."""

    sequence_length: PositiveInt
    num_windows: NonNegativeInt
    num_pieces: NonNegativeInt
    attended_tokens: NonNegativeFloat
    """The mean of the tokens in a token's document within its window."""

    crc32: NonNegativeInt
    """Of everything after the header."""


class PackedSplit:
    """The windows of a train split, by number. A window's last token is followed by its successor in the stream."""

    def __init__(self, dataset_dir: Path, sequence_length: int) -> None:
        """Opens the index, or makes it. Raises DataError if the split is damaged or shorter than a sample."""
        self.split = TokenSplit(dataset_dir, "train")
        self.num_tokens = self.split.num_tokens
        require_tokens(dataset_dir, "train", self.num_tokens, sequence_length)
        self._opened = (dataset_dir, sequence_length)
        facts = packing_facts(dataset_dir, sequence_length)
        path = packing_file(dataset_dir, sequence_length)
        self._firsts = mapped(path, FIRST, HEADER_BYTES, facts.num_windows + 1)
        self._pieces = mapped(path, PIECE, HEADER_BYTES + self._firsts.nbytes, facts.num_pieces)

    def __reduce__(self) -> tuple[type["PackedSplit"], tuple[Path, int]]:
        """A pickle holds the path, not the index: whoever loads it opens the dataset again."""
        return PackedSplit, self._opened

    @property
    def is_remote(self) -> bool:
        """Whether the tokens lie at a URL."""
        return self.split.is_remote

    def expect(self, window: int, length: int) -> None:
        """Begins to fetch the tokens of a window, if they are remote and not on this machine."""
        for start, num_tokens in self.pieces(window):
            self.split.expect(start, min(num_tokens + 1, length))

    def pieces(self, window: int) -> list[tuple[int, int]]:
        """Where each piece of a window starts in the stream, and its tokens."""
        found: list[tuple[int, int]] = self._pieces[self._firsts[window] : self._firsts[window + 1]].tolist()
        return found

    def fill(self, tokens: Int64Array, window: int) -> None:
        """Fills `tokens`, (T + 1,), with a window and the token that follows its last one."""
        self.fill_windows(tokens, [(self._firsts[window], self._firsts[window + 1])])

    def bounds(self, windows: Int64Array) -> Int64Array:
        """The numbers of each window's first piece and of the next window's: (N, 2)."""
        return np.stack([self._firsts[windows], self._firsts[windows + 1]], axis=1).astype(np.int64)

    def fill_windows(self, tokens: Int64Array, bounds: Iterable[Sequence[int]]) -> None:
        """Fills `tokens`, (N (T + 1),), with the windows of these `bounds`, each with the token that follows it."""
        pieces: list[tuple[int, int]] = []
        for first, stop in bounds:
            pieces += self._pieces[first:stop].tolist()
            start, length = pieces[-1]
            pieces[-1] = (start, length + 1)
        self.split.fill_pieces(tokens, pieces)


def packing_file(dataset_dir: Path, sequence_length: int) -> Path:
    """The index file of a dataset for windows of this length."""
    return dataset_dir / f"packing-{sequence_length}.index"


def packing_facts(dataset_dir: Path, sequence_length: int) -> PackingFacts:
    """The facts of a dataset's packing, whose index is made if it is missing or broken. Raises DataError."""
    return known_packing(dataset_dir, sequence_length) or _write(dataset_dir, sequence_length)


def known_packing(dataset_dir: Path, sequence_length: int) -> PackingFacts | None:
    """The facts of a dataset's packing; None if it has no whole index for windows of this length."""
    path, fingerprint = packing_file(dataset_dir, sequence_length), read_dataset_manifest(dataset_dir).fingerprint
    with suppress(OSError, ValidationError, ValueError), path.open("rb") as file:
        facts = PackingFacts.model_validate_json(file.read(HEADER_BYTES))
        size = HEADER_BYTES + FIRST.itemsize * (facts.num_windows + 1) + PIECE.itemsize * facts.num_pieces
        known = (facts.format_version, facts.fingerprint, facts.sequence_length)
        whole = os.fstat(file.fileno()).st_size == size and _crc32(file) == facts.crc32
        return facts if whole and known == (FORMAT_VERSION, fingerprint, sequence_length) else None
    return None


def _write(dataset_dir: Path, sequence_length: int) -> PackingFacts:
    path = packing_file(dataset_dir, sequence_length)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        with temporary.open("w+b") as file:
            facts = _write_index(file, dataset_dir, sequence_length)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"data.packing: {path} cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return facts


def _write_index(file: BinaryIO, dataset_dir: Path, sequence_length: int) -> PackingFacts:
    """Writes the pieces as they are packed, each block's windows before them, and the header at last."""
    ends, manifest = DocumentEnds(dataset_dir, "train"), read_dataset_manifest(dataset_dir)
    num_tokens = manifest.splits["train"].num_tokens
    first_piece = HEADER_BYTES + FIRST.itemsize * (num_tokens // sequence_length + 1)
    num_windows = num_pieces = squares = 0
    file.seek(HEADER_BYTES)
    file.write(np.zeros(1, FIRST).tobytes())
    for block in pack(ends.lengths(), sequence_length):
        firsts = num_pieces + np.cumsum(block.num_pieces)
        pieces = np.empty(len(block.starts), PIECE)
        pieces["start"], pieces["length"] = block.starts, block.lengths
        file.seek(HEADER_BYTES + FIRST.itemsize * (num_windows + 1))
        file.write(firsts.astype(FIRST).tobytes())
        file.seek(first_piece + PIECE.itemsize * num_pieces)
        file.write(pieces.tobytes())
        num_windows, num_pieces = num_windows + len(firsts), num_pieces + len(pieces)
        squares += int((block.lengths**2).sum())
    file.seek(HEADER_BYTES)
    facts = PackingFacts(
        format_version=FORMAT_VERSION,
        fingerprint=manifest.fingerprint,
        sequence_length=sequence_length,
        num_windows=num_windows,
        num_pieces=num_pieces,
        attended_tokens=squares / (num_windows * sequence_length),
        crc32=_crc32(file),
    )
    file.seek(0)
    file.write(facts.model_dump_json().encode().ljust(HEADER_BYTES))
    return facts


def _crc32(file: BinaryIO) -> int:
    """Of the rest of a file."""
    crc = 0
    while part := file.read(1 << 20):
        crc = zlib.crc32(part, crc)
    return crc
