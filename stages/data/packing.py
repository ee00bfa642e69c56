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
import socket
import zlib
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import mul
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError

from model.strict import Strict
from stages.data.dataset import read_dataset_manifest
from stages.data.documents import DocumentEnds, mean_attended_tokens
from stages.data.errors import DataError
from stages.data.tokens import Int64Array, TokenSplit, mapped, require_tokens
from stages.spec import Packing

BoolArray = npt.NDArray[np.bool_]

BLOCK_DOCUMENTS = 1 << 20
BLOCK_TOKENS = 1 << 32

FORMAT_VERSION = 1
HEADER_BYTES = 1024
"""The header is JSON, padded with spaces."""

PIECE = np.dtype([("start", "<u8"), ("length", "<u4")])
FIRST = np.dtype("<u8")


class Pieces(NamedTuple):
    """Parts of documents, each `lengths` tokens from `starts` on in the stream of a split: all (P,)."""

    starts: Int64Array
    lengths: Int64Array
    whole: BoolArray
    """Which are documents of their own, not cut so far."""

    def at(self, rows: Int64Array | BoolArray) -> "Pieces":
        """Some of the pieces."""
        return Pieces(self.starts[rows], self.lengths[rows], self.whole[rows])


class PackedBlock(NamedTuple):
    """Windows of T tokens each, in order."""

    starts: Int64Array
    """Where the pieces start in the stream, window after window: (P,)."""

    lengths: Int64Array
    """The pieces' tokens: (P,)."""

    num_pieces: Int64Array
    """The number of pieces of each window."""


def pack(lengths: Iterable[Int64Array], length: int) -> Iterator[PackedBlock]:
    """The windows of `length` tokens of a stream whose documents have these lengths, which come in parts.

    Every token is in one window, but for the fewer than `length` that are left at the end.
    """
    left, position = _joined([]), 0
    for part in _blocks(lengths):
        ends = position + np.cumsum(part)
        documents = Pieces(ends - part, part, np.ones(len(part), bool))
        block, left = _packed(_joined([left, documents]), length)
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


def _joined(parts: list[Pieces]) -> Pieces:
    starts, lengths, whole = zip(*parts, strict=True) if parts else ((), (), ())
    empty = np.empty(0, np.int64)
    return Pieces(
        np.concatenate([empty, *starts]),
        np.concatenate([empty, *lengths]),
        np.concatenate([np.empty(0, bool), *whole]),
    )


def _packed(documents: Pieces, length: int) -> tuple[PackedBlock, Pieces]:
    """The windows of a block, and the pieces that do not fill another one."""
    counts, rests = np.divmod(documents.lengths, length)
    first = np.repeat(documents.starts, counts)
    within = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
    full_starts = first + within * length

    has_rest = rests > 0
    short = Pieces(documents.starts + counts * length, rests, documents.whole & (counts == 0)).at(has_rest)
    short = short.at(np.argsort(-short.lengths, kind="stable"))
    windows, used = best_fit(short.lengths, length)
    num_kept = int(short.lengths.sum()) // length
    rank = np.empty(len(used), np.int64)
    rank[np.argsort(-used, kind="stable")] = np.arange(len(used))  # the fullest windows are kept
    windows = rank[windows]
    kept, pool = windows < num_kept, short.at(windows >= num_kept)
    gaps = np.zeros(num_kept, np.int64)
    gaps[rank[rank < num_kept]] = length - used[rank < num_kept]
    filled, filled_windows = _fill(pool, gaps)
    placed = filled_windows < num_kept

    kept_short = short.at(kept)
    is_filler = np.repeat([False, True], [len(kept_short.starts), int(placed.sum())])
    order_within = np.concatenate([kept_short.starts, np.arange(int(placed.sum()))])
    window = np.concatenate([windows[kept], filled_windows[placed]])
    order = np.lexsort((order_within, is_filler, window))
    starts = np.concatenate([kept_short.starts, filled.starts[placed]])[order]
    lengths = np.concatenate([kept_short.lengths, filled.lengths[placed]])[order]
    block = PackedBlock(
        starts=np.concatenate([full_starts, starts]),
        lengths=np.concatenate([np.full(len(full_starts), length), lengths]),
        num_pieces=np.concatenate([np.ones(len(full_starts), np.int64), np.bincount(window, minlength=num_kept)]),
    )
    return block, filled.at(~placed)


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

    Returns the parts and the window of each, `len(gaps)` for what remains.
    """
    gap_ends, piece_ends = np.cumsum(gaps), np.cumsum(pool.lengths)
    edges = np.unique(np.concatenate([[0], gap_ends, piece_ends]))
    left, parts = edges[:-1], np.diff(edges)
    piece = np.searchsorted(piece_ends, left, side="right")
    window = np.searchsorted(gap_ends, left, side="right")
    cut = np.bincount(piece, minlength=len(pool.starts)) > 1
    starts = pool.starts[piece] + left - (piece_ends - pool.lengths)[piece]
    return Pieces(starts, parts, (pool.whole & ~cut)[piece]), window


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

    def fill(self, tokens_T: Int64Array, window: int) -> None:
        """Fills (T + 1,) with a window and the token that follows its last one."""
        self.split.numbers.fill_pieces(tokens_T, self.pieces(window, len(tokens_T)))

    def fill_rows(self, tokens_BT: Int64Array, windows: Sequence[int]) -> None:
        """Fills each row, (T + 1,), with a window and the token that follows its last one."""
        pieces: list[tuple[int, int]] = []
        for window in windows:
            pieces += self.pieces(window, tokens_BT.shape[1])
        self.split.numbers.fill_pieces(tokens_BT.reshape(-1), pieces)

    def pieces(self, window: int, length: int) -> list[tuple[int, int]]:
        """Where each piece of a window starts in the stream, and its tokens; `length` are T + 1, the successor too."""
        first, stop = self._firsts[window : window + 2].tolist()
        pieces: list[tuple[int, int]] = self._pieces[first:stop].tolist()
        start, num_tokens = pieces[-1]
        pieces[-1] = (start, num_tokens + 1)
        return pieces

    def expect(self, window: int, length: int) -> None:
        """Begins to fetch the tokens of a window, if they are remote and not on this machine."""
        for start, num_tokens in self.pieces(window, length):
            self.split.expect(start, num_tokens)


def attended_tokens(datasets: Mapping[Path, float], sequence_length: int, packing: Packing = "concatenate") -> float:
    """How many data tokens a token attends to within its document, on average over samples from `datasets`.

    Each has its weight. Packs them if that was not done before. Raises DataError if one is damaged.
    """
    if packing == "best_fit":
        means = [packing_facts(path, sequence_length).attended_tokens for path in datasets]
    else:
        means = [mean_attended_tokens(DocumentEnds(path, "train").lengths(), sequence_length) for path in datasets]
    return sum(map(mul, means, datasets.values())) / sum(datasets.values())


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
