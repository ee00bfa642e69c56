"""Megatron-LM's and GPT-NeoX's files of tokens (MMapIndexedDataset): PREFIX.bin and PREFIX.idx.

PREFIX.bin holds tokens and nothing else. PREFIX.idx holds, little-endian and without padding:

    9 bytes   MMIDIDX and two zeros
    uint64    version: 1
    uint8     the type of a token (TYPES)
    uint64    S, the number of sequences
    uint64    D, the number of documents and one more
    int32     S sizes, in tokens
    int64     S pointers: where each sequence begins in the .bin, in bytes; one follows the other
    int64     D bounds of documents, in sequences: 0, ..., S
    int8      S modes; only in Megatron's files for text with images: 0 is text

The Pile as published for Pythia has its .bin in parts, PREFIX-00000-of-00132.bin and so on, with one index. They are
read as they are. The definition: megatron/core/datasets/indexed_dataset.py of NVIDIA/Megatron-LM, and
megatron/data/indexed_dataset.py of EleutherAI/gpt-neox, which knows no modes and gives code 6 and 7 other names.
"""

import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stages.token_files.files import TokenFiles
from stages.token_files.mapped import Int64Array, MappedNumbers, TokenFileError, chunks, file_bytes, mapped, unreadable

MAGIC = b"MMIDIDX\x00\x00"
OLD_MAGIC = b"TNTIDX\x00\x00"
VERSION = 1
TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Types of tokens by their codes."""
FLOATS = (6, 7)
"""Codes of floating-point types, which no token has."""

LARGEST_SIZE = 2**31 - 1
_HEADER = struct.Struct("<9sQBQQ")
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.bin")


class _Index(NamedTuple):
    """The tables of an index."""

    path: Path
    dtype: np.dtype[Any]
    sizes: npt.NDArray[Any]
    pointers: npt.NDArray[Any]
    bounds: npt.NDArray[Any]
    modes: npt.NDArray[Any]


def open_megatron(prefix: Path) -> TokenFiles:
    """The documents of `prefix`.idx and `prefix`.bin (or its parts), after a pass over the whole index.

    Raises TokenFileError, which names the file and what is wrong in it, if they are not what the definition says.
    """
    index = _read_index(_with_ending(prefix, ".idx"))
    paths = _bin_paths(prefix)
    sizes = [file_bytes(path) for path in paths]
    for path, size in zip(paths, sizes, strict=True):
        if size % index.dtype.itemsize:
            raise TokenFileError(
                f"{path} has {size:,} bytes, which is no multiple of the {index.dtype.itemsize} bytes of a token in"
                f" {index.path}: it is truncated, or belongs to another index"
            )
    _check_sequences(index, sum(sizes), paths)
    _check_bounds(index)
    num_tokens, bounds, pointers = sum(sizes) // index.dtype.itemsize, index.bounds, index.pointers

    def ends(first: int, stop: int) -> Int64Array:
        after = bounds[first + 1 : stop + 1]
        found = np.full(len(after), num_tokens, np.int64)
        inside = after < len(pointers)
        found[inside] = pointers[after[inside]] // index.dtype.itemsize
        return found

    tokens = MappedNumbers([mapped(path, index.dtype) for path in paths])
    return TokenFiles(prefix, tuple(paths), index.dtype, tokens, len(bounds) - 1, ends)


def write_megatron(prefix: Path, source: TokenFiles, on_tokens: Callable[[int], None] = lambda count: None) -> None:
    """Writes the documents of `source` as `prefix`.bin and `prefix`.idx, a sequence each, and syncs both to disk.

    Tokens of two bytes become uint16, others int32. Calls `on_tokens` with numbers of tokens that were written. Raises
    TokenFileError if an id or a document is too large for the format.
    """
    code = 8 if source.dtype.itemsize == 2 else 4
    dtype = np.dtype(TYPES[code])
    largest = np.iinfo(dtype).max

    def tokens() -> Iterator[bytes]:
        for start, stop in chunks(len(source.tokens)):
            found = source.tokens.read(start, stop - start)
            if found.min() < 0 or found.max() > largest:
                raise TokenFileError(f"{source.name} has a token outside 0 to {largest:,}, which is all the format has")
            on_tokens(stop - start)
            yield found.astype(dtype).tobytes()

    def sizes() -> Iterator[bytes]:
        for found, starts in _spans(source):
            if (found - starts).max() > LARGEST_SIZE:
                raise TokenFileError(f"{source.name} has a document of more than {LARGEST_SIZE:,} tokens")
            yield (found - starts).astype("<i4").tobytes()

    def index() -> Iterator[bytes]:
        count = source.num_documents
        yield _HEADER.pack(MAGIC, VERSION, code, count, count + 1)
        yield from sizes()
        yield from ((starts * dtype.itemsize).astype("<i8").tobytes() for _, starts in _spans(source))
        yield from (np.arange(start, stop, dtype="<i8").tobytes() for start, stop in chunks(count + 1))

    _write(_with_ending(prefix, ".bin"), tokens())
    _write(_with_ending(prefix, ".idx"), index())


def _spans(source: TokenFiles) -> Iterator[tuple[Int64Array, Int64Array]]:
    """The ends and the starts of all documents, in tokens, a chunk at a time."""
    last = 0
    for first, stop in chunks(source.num_documents):
        ends = source.ends(first, stop)
        yield ends, np.concatenate([[last], ends[:-1]])
        last = int(ends[-1])


def _write(path: Path, content: Iterator[bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(content)
        file.flush()
        os.fsync(file.fileno())


def _with_ending(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


def _read_index(path: Path) -> _Index:
    """The tables of an index, whose file has exactly their size."""
    num_bytes = file_bytes(path)
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
    except OSError as error:
        raise unreadable(path, error) from error
    if header.startswith(OLD_MAGIC):
        raise TokenFileError(
            f"{path} is an index of the older kind (TNTIDX); growctl reads the memory-mapped kind (MMIDIDX), which"
            " Megatron's preprocess_data.py writes with --dataset-impl mmap"
        )
    if header[: len(MAGIC)] != MAGIC[: len(header)]:
        raise TokenFileError(f"{path} is no index of Megatron's or GPT-NeoX's: it does not begin with MMIDIDX")
    if len(header) < _HEADER.size:
        raise TokenFileError(f"{path} is truncated: it has {num_bytes:,} bytes, and the header alone {_HEADER.size}")
    _, version, code, num_sequences, num_bounds = _HEADER.unpack(header)
    if version != VERSION:
        raise TokenFileError(f"{path} has version {version}; growctl reads version {VERSION}")
    if code not in TYPES:
        what = "a floating-point type, and tokens are integers" if code in FLOATS else "no type of the format"
        raise TokenFileError(f"{path}: the type of its tokens is {code}, which is {what}")
    tables = _HEADER.size + 12 * num_sequences + 8 * num_bounds
    if num_bytes not in (tables, tables + num_sequences):
        raise TokenFileError(
            f"{path} has {num_bytes:,} bytes, but its header says {num_sequences:,} sequences and {num_bounds:,} bounds"
            f" of documents, which take {tables:,}: it is {'truncated' if num_bytes < tables else 'damaged'}"
        )
    pointers_at = _HEADER.size + 4 * num_sequences
    bounds_at = pointers_at + 8 * num_sequences
    return _Index(
        path,
        np.dtype(TYPES[code]),
        sizes=mapped(path, "<i4", _HEADER.size, num_sequences),
        pointers=mapped(path, "<i8", pointers_at, num_sequences),
        bounds=mapped(path, "<i8", bounds_at, num_bounds),
        modes=mapped(path, "<i1", tables, num_bytes - tables),
    )


def _bin_paths(prefix: Path) -> list[Path]:
    """`prefix`.bin or, without it, all its parts."""
    whole = _with_ending(prefix, ".bin")
    if whole.exists():
        return [whole]
    try:
        names = [path.name for path in prefix.parent.iterdir() if path.name.startswith(prefix.name)]
    except OSError as error:
        raise unreadable(prefix.parent, error) from error
    found = [match for name in names if (match := _PART.fullmatch(name, len(prefix.name))) and int(match[2])]
    if not found:
        raise TokenFileError(f"{whole} does not exist, and no parts of it ({prefix.name}-00000-of-...) either")
    counts = {int(match[2]) for match in found}
    if len(counts) > 1:
        raise TokenFileError(
            f"{prefix} has parts of {' and of '.join(map(str, sorted(counts)))}; leave one set of them"
        )
    count = counts.pop()
    parts = [_with_ending(prefix, f"-{number:05d}-of-{count:05d}.bin") for number in range(count)]
    if missing := [part for part in parts if part.name not in {match.string for match in found}]:
        raise TokenFileError(f"{missing[0]} is missing: the tokens of {prefix} are in {count} parts")
    return parts


def _check_sequences(index: _Index, bin_bytes: int, paths: list[Path]) -> None:
    """Raises TokenFileError unless the sequences follow each other from the start of the .bin to its end."""
    at = 0
    for first, stop in chunks(len(index.sizes)):
        sizes = index.sizes[first:stop].astype(np.int64)
        if (sizes < 0).any():
            number = first + int(np.argmax(sizes < 0))
            raise TokenFileError(f"{index.path}: sequence {number:,} has the size {index.sizes[number]:,}")
        ends = at + np.cumsum(sizes * index.dtype.itemsize)
        wrong = index.pointers[first:stop] != np.concatenate([[at], ends[:-1]])
        if wrong.any():
            number = first + int(np.argmax(wrong))
            expected = at if number == first else int(ends[number - first - 1])
            raise TokenFileError(
                f"{index.path}: the pointer of sequence {number:,} is {index.pointers[number]:,}, but the sizes before"
                f" it add up to {expected:,} bytes"
            )
        at = int(ends[-1])
        if at > bin_bytes:
            break
        if index.modes[first:stop].any():
            number = first + int(np.argmax(index.modes[first:stop] != 0))
            raise TokenFileError(
                f"{index.path}: sequence {number:,} is no text (mode {index.modes[number]}); growctl trains on text"
                " only"
            )
    if at != bin_bytes:
        where = f"{paths[0]} has" if len(paths) == 1 else f"the {len(paths)} parts of its .bin have"
        raise TokenFileError(
            f"{index.path}: its sizes add up to {at:,} bytes, but {where} {bin_bytes:,}: one of them is truncated, or"
            " they do not belong together"
        )


def _check_bounds(index: _Index) -> None:
    """Raises TokenFileError unless the bounds of documents rise from the first sequence to the last."""
    bounds, num_sequences = index.bounds, len(index.sizes)
    if not len(bounds) or bounds[0] != 0:
        what = f"the first is {bounds[0]:,}" if len(bounds) else "it has none"
        raise TokenFileError(f"{index.path}: the bounds of its documents must begin with 0, but {what}")
    for first, stop in chunks(len(bounds) - 1):
        falls = bounds[first + 1 : stop + 1] < bounds[first:stop]
        if falls.any():
            number = first + int(np.argmax(falls))
            raise TokenFileError(
                f"{index.path}: document {number:,} begins at sequence {bounds[number]:,} and ends at"
                f" {bounds[number + 1]:,}"
            )
    if bounds[-1] != num_sequences:
        raise TokenFileError(
            f"{index.path}: its last document ends at sequence {bounds[-1]:,}, but it has {num_sequences:,} sequences"
        )
