"""Packs documents into windows of T tokens so that few are cut: Best-fit Packing (Ding et al. 2024, arXiv 2404.10830).

A document of T tokens or more is cut into pieces of T, each a window, and a rest. Then, from the longest on, each
shorter piece goes into the fullest window that has room for it. What is still free is filled with the beginnings of
other documents, cut there: those in the emptiest windows. So there is no padding, and only a window's last piece may
end inside a document.

Whole blocks of documents are packed at a time, in bounded memory; what does not fill a window goes into the next
block. All pieces of one length are placed at once, so the time depends on the number of lengths more than on that of
documents.

The windows of a dataset are in an index file beside its tokens. The index follows from the dataset and the window
length alone: one that is missing or broken is made again. Several processes may make it at once; each writes a file of
its own and renames it.
"""

import os
import secrets
import zlib
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

from model.strict import Strict
from stages.data.dataset import DatasetPart, read_dataset_manifest
from stages.data.documents import document_lengths, mean_attended_tokens
from stages.data.errors import DataError
from stages.data.tokens import Int64Array, mapped
from stages.spec import Packing

BLOCK_DOCUMENTS = 1 << 20
BLOCK_TOKENS = 1 << 32

FORMAT_VERSION = 1
HEADER_BYTES = 1024
"""The header is JSON, padded with spaces."""

PIECE = np.dtype([("start", "<u8"), ("length", "<u4")])
FIRST = np.dtype("<u8")


class Pieces(NamedTuple):
    """Parts of documents, each `lengths` tokens from `starts` on in the stream of a split: both (P,)."""

    starts: Int64Array
    lengths: Int64Array

    @classmethod
    def join(cls, parts: Sequence["Pieces"]) -> "Pieces":
        """The pieces of all parts."""
        return Pieces(*map(np.concatenate, zip(*parts, strict=True)))

    def at(self, rows: np.ndarray) -> "Pieces":
        """Some of the pieces, by number or by a mask."""
        return Pieces(self.starts[rows], self.lengths[rows])


class PackedBlock(NamedTuple):
    """Windows of T tokens each, in order."""

    pieces: Pieces
    """The pieces of one window after another."""

    num_pieces: Int64Array
    """The number of pieces of each window."""


def pack(lengths: Iterable[Int64Array], length: int) -> Iterator[PackedBlock]:
    """The windows of `length` tokens of a stream whose documents have these lengths, which come in parts.

    Every token is in one window, but for the fewer than `length` that are left at the end.
    """
    empty = np.empty(0, np.int64)
    left, position = Pieces(empty, empty), 0
    for part in _blocks(lengths):
        ends = position + np.cumsum(part)
        block, left = _packed(Pieces.join([left, Pieces(ends - part, part)]), length)
        position = int(ends[-1])
        yield block


def _blocks(lengths: Iterable[Int64Array]) -> Iterator[Int64Array]:
    held: list[Int64Array] = []
    for part in lengths:
        if len(part):
            held.append(part)
        if sum(map(len, held)) >= BLOCK_DOCUMENTS or sum(int(each.sum()) for each in held) >= BLOCK_TOKENS:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


def _packed(documents: Pieces, length: int) -> tuple[PackedBlock, Pieces]:
    """The windows of a block, and the pieces that do not fill another one."""
    counts, rests = np.divmod(documents.lengths, length)
    first = np.repeat(documents.starts, counts)
    within = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
    full = Pieces(first + within * length, np.full(len(first), length))

    short = Pieces(documents.starts + counts * length, rests).at(rests > 0)
    short = short.at(np.argsort(-short.lengths, kind="stable"))
    windows, used = best_fit(short.lengths, length)
    num_kept = int(short.lengths.sum()) // length
    rank = np.empty(len(used), np.int64)
    rank[np.argsort(-used, kind="stable")] = np.arange(len(used))  # the fullest windows are kept
    windows = rank[windows]
    gaps = np.zeros(num_kept, np.int64)
    gaps[rank[rank < num_kept]] = length - used[rank < num_kept]
    kept = windows < num_kept
    filling, filled_windows = _fill(short.at(~kept), gaps)
    placed = filled_windows < num_kept

    # within a window, whole pieces in the order of the stream, then what fills it
    window = np.concatenate([windows[kept], filled_windows[placed]])
    order_within = np.concatenate([short.starts[kept], np.arange(placed.sum())])
    order = np.lexsort((order_within, np.repeat([False, True], [kept.sum(), placed.sum()]), window))
    pieces = Pieces.join([full, Pieces.join([short.at(kept), filling.at(placed)]).at(order)])
    num_pieces = np.concatenate([np.ones(len(first), np.int64), np.bincount(window, minlength=num_kept)])
    return PackedBlock(pieces, num_pieces), filling.at(~placed)


def best_fit(lengths: Int64Array, capacity: int) -> tuple[Int64Array, Int64Array]:
    """Best-fit decreasing: the window of each piece, and how many tokens each window holds.

    `lengths` fall from `capacity` at most to 1 at least. Each piece goes into the fullest window that has room for it,
    or else into a new one.
    """
    windows = np.empty(len(lengths), np.int64)
    free: dict[int, list[Int64Array]] = {}
    """Windows by the room that they have left."""
    rooms: list[int] = []
    """The keys of `free`, rising."""

    def put(ids: Int64Array, room: int) -> None:
        if room and len(ids):
            if room not in free:
                insort(rooms, room)
            free.setdefault(room, []).append(ids)

    num_windows = done = 0
    for size, count in zip(*_runs(lengths), strict=True):
        stop = done + count
        while done < stop:
            place = bisect_left(rooms, size)
            room = rooms.pop(place) if place < len(rooms) else capacity
            each = room // size  # a window that takes one piece is then the fullest with room for the next
            most = -(-(stop - done) // each)
            if room in free:
                found = free.pop(room)
                ids = found[0] if len(found) == 1 else np.concatenate(found)
            else:
                ids = np.arange(num_windows, num_windows + most)
                num_windows += most
            put(ids[most:], room)
            ids = ids[:most]
            placed = min(stop - done, len(ids) * each)
            windows[done : done + placed] = np.repeat(ids, each)[:placed]
            done += placed
            last = placed - (len(ids) - 1) * each
            put(ids[:-1], room - each * size)
            put(ids[-1:], room - last * size)
    return windows, np.bincount(windows, lengths, num_windows).astype(np.int64)


def _runs(lengths: Int64Array) -> tuple[list[int], list[int]]:
    """The different lengths in their order, and how often each occurs."""
    firsts = np.flatnonzero(np.diff(lengths, prepend=-1))
    return lengths[firsts].tolist(), np.diff(firsts, append=len(lengths)).tolist()


def _fill(pool: Pieces, gaps: Int64Array) -> tuple[Pieces, Int64Array]:
    """Lays the pieces of `pool`, one after another, into the `gaps` of windows, and cuts them where a gap ends.

    Returns the parts, and the window of each, `len(gaps)` for what remains.
    """
    gap_ends, piece_ends = np.cumsum(gaps), np.cumsum(pool.lengths)
    edges = np.unique(np.concatenate([[0], gap_ends, piece_ends]))
    left = edges[:-1]
    piece = np.searchsorted(piece_ends, left, side="right")
    starts = pool.starts[piece] + left - (piece_ends - pool.lengths)[piece]
    return Pieces(starts, np.diff(edges)), np.searchsorted(gap_ends, left, side="right")


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


class PackedWindows:
    """The windows of a train split, by number. A window's last token is followed by its successor in the stream."""

    def __init__(self, dataset_dir: Path, sequence_length: int) -> None:
        """Opens the index, or makes it. Raises DataError if the split is damaged."""
        facts = packing_facts(dataset_dir, sequence_length)
        path = packing_file(dataset_dir, sequence_length)
        self._firsts = mapped(path, FIRST, HEADER_BYTES, facts.num_windows + 1)
        self._pieces = mapped(path, PIECE, HEADER_BYTES + self._firsts.nbytes, facts.num_pieces)

    def pieces(self, window: int) -> list[tuple[int, int]]:
        """Where each piece of a window starts in the stream, and its tokens; the last one with its successor."""
        first, stop = self._firsts[window : window + 2].tolist()
        pieces: list[tuple[int, int]] = self._pieces[first:stop].tolist()
        start, num_tokens = pieces[-1]
        pieces[-1] = (start, num_tokens + 1)
        return pieces


def attended_tokens(parts: Sequence[DatasetPart], sequence_length: int, packing: Packing = "concatenate") -> float:
    """How many data tokens a token attends to within its document, on average over samples from `parts`.

    Packs them if that was not done before. Raises DataError if one is damaged.
    """
    total = 0.0
    for part in parts:
        if packing == "best_fit":
            mean = packing_facts(part.directory, sequence_length).attended_tokens
        else:
            mean = mean_attended_tokens(document_lengths(part.directory, "train"), sequence_length)
        total += part.weight * mean
    return total / sum(part.weight for part in parts)


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
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
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


def _write_index(file: IO[bytes], dataset_dir: Path, sequence_length: int) -> PackingFacts:
    """Writes the pieces as they are packed, each block's windows before them, and the header at last."""
    manifest = read_dataset_manifest(dataset_dir)
    most_windows = manifest.splits["train"].num_tokens // sequence_length
    first_piece = HEADER_BYTES + FIRST.itemsize * (most_windows + 1)
    num_windows = num_pieces = squares = 0
    file.seek(HEADER_BYTES)
    file.write(np.zeros(1, FIRST).tobytes())
    for block in pack(document_lengths(dataset_dir, "train"), sequence_length):
        file.seek(HEADER_BYTES + FIRST.itemsize * (num_windows + 1))
        file.write((num_pieces + np.cumsum(block.num_pieces)).astype(FIRST).tobytes())
        file.seek(first_piece + PIECE.itemsize * num_pieces)
        pieces = np.empty(len(block.pieces.starts), PIECE)
        pieces["start"], pieces["length"] = block.pieces
        file.write(pieces.tobytes())
        num_windows, num_pieces = num_windows + len(block.num_pieces), num_pieces + len(pieces)
        squares += int((block.pieces.lengths**2).sum())
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


def _crc32(file: IO[bytes]) -> int:
    """Of everything after the header."""
    file.flush()
    return zlib.crc32(np.memmap(file, np.uint8, "r", HEADER_BYTES).data)
