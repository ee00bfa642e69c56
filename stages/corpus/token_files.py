"""Files of tokens that other programs write: Megatron-LM's and GPT-NeoX's (.bin, .idx), and datatrove's (.ds).

**Megatron** (MMapIndexedDataset). PREFIX.bin holds tokens and nothing else. PREFIX.idx holds, little-endian and without
padding:

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

**datatrove**. NAME.ds holds tokens of 2 or 4 bytes (unsigned, little-endian) and nothing else. NAME.ds.index holds the
end of each document as uint64, in tokens. NAME.ds.metadata, if there is one, holds lines of text: the tokenizer with
`|` and the bytes of a token, then the number of tokens. The definition: TokenizedFile in
datatrove/pipeline/tokens/tokenizer.py.
"""

import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stages.data.errors import DataError
from stages.data.tokens import Int64Array, Numbers, chunks, mapped

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Types of tokens by their codes. The others are floating-point types."""
LARGEST_SIZE = 2**31 - 1
_HEADER = struct.Struct("<9sQBQQ")
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.bin")


@dataclass(frozen=True)
class TokenFiles:
    """The tokens of some documents, one document after another, in one file or in several that follow each other."""

    name: Path
    """What the user calls them."""

    paths: tuple[Path, ...]
    """The files of the tokens: nothing but numbers of `dtype`. A document may begin in one and end in the next."""

    dtype: np.dtype[Any]
    """An integer type, little-endian."""

    tokens: Numbers
    """All tokens, read from disk on use. Ids are not checked."""

    ends: Callable[[], Iterator[Int64Array]]
    """Where all documents end, in tokens from the start, in parts: never falling. The last ends where the tokens end.
    """


def open_token_files(path: Path) -> list[TokenFiles]:
    """The token files called `path`, in the order of their names if it is a folder.

    `path` is PREFIX, PREFIX.idx or PREFIX.bin for Megatron's and GPT-NeoX's, NAME.ds for datatrove's. Raises DataError
    if there is nothing, or if a file is damaged.
    """
    if path.is_dir():
        files = sorted([*path.glob("*.idx"), *path.glob("*.ds")])
        if not files:
            raise DataError(f"{path} has no token files: neither *.idx nor *.ds")
        return [_open(file) for file in files]
    return [_open(path)]


def _open(path: Path) -> TokenFiles:
    if path.suffix == ".ds":
        return _open_datatrove(path)
    prefix = path.with_suffix("") if path.suffix in (".idx", ".bin") else path
    if prefix == path and not _with_ending(prefix, ".idx").exists():
        raise DataError(
            f"there are no token files {str(path)!r}: name PREFIX for PREFIX.idx and PREFIX.bin, a file NAME.ds, or a"
            " folder of them"
        )
    return open_megatron(prefix)


def _open_datatrove(path: Path) -> TokenFiles:
    index_path = path.with_name(f"{path.name}.index")
    num_bytes, index_bytes = _file_bytes(path), _file_bytes(index_path)
    index = mapped(index_path, "<u8")
    before = 0
    for first, stop in chunks(len(index)):
        ends = index[first:stop]
        if (ends < np.concatenate([np.array([before], np.uint64), ends[:-1]])).any() or ends[-1] >= 2**62:
            raise DataError(f"{index_path} is damaged: a document ends before the one in front of it")
        before = int(ends[-1])
    size = _recorded_bytes(path) or num_bytes // max(1, before) or 2
    if size not in (2, 4) or before * size != num_bytes or index_bytes % 8:
        raise DataError(
            f"{path} has {num_bytes:,} bytes, but its documents end after {before:,} tokens of 2 or 4 bytes: it, its"
            " index or its metadata is truncated, or they do not belong together"
        )
    tokens = Numbers.join([mapped(path, f"<u{size}")])
    return TokenFiles(path, (path,), np.dtype(f"<u{size}"), tokens, lambda: _in_chunks(index))


def _recorded_bytes(path: Path) -> int | None:
    """The size of a token that the metadata of a .ds file has; None without metadata."""
    metadata = path.with_name(f"{path.name}.metadata")
    if not metadata.exists():
        return None
    with metadata.open("rb") as file:
        size = file.readline(1 << 16).rstrip().rpartition(b"|")[2]
    if size not in (b"2", b"4"):
        raise DataError(f"{metadata}: its first line must end in the bytes of a token, |2 or |4")
    return int(size)


def _in_chunks(numbers: npt.NDArray[Any]) -> Iterator[Int64Array]:
    return (numbers[first:stop].astype(np.int64) for first, stop in chunks(len(numbers)))


def open_megatron(prefix: Path) -> TokenFiles:
    """The documents of `prefix`.idx and `prefix`.bin (or its parts), after a pass over the whole index.

    Raises DataError, which names the file and what is wrong in it, if they are not what the definition says.
    """
    path, paths = _with_ending(prefix, ".idx"), _bin_paths(prefix)
    num_bytes = _file_bytes(path)
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(MAGIC):
        raise DataError(
            f"{path} is no whole index of Megatron's or GPT-NeoX's: it must begin with MMIDIDX, which Megatron's"
            " preprocess_data.py writes with --dataset-impl mmap"
        )
    _, version, code, num_sequences, num_bounds = _HEADER.unpack(header)
    if version != VERSION or code not in TYPES:
        raise DataError(
            f"{path} has version {version} and tokens of type {code}; growctl reads version {VERSION} with integers"
        )
    tables = _HEADER.size + 12 * num_sequences + 8 * num_bounds
    if num_bytes not in (tables, tables + num_sequences):
        raise DataError(
            f"{path} has {num_bytes:,} bytes, but its header says {num_sequences:,} sequences and {num_bounds:,} bounds"
            f" of documents, which take {tables:,}: it is truncated or damaged"
        )
    sizes = mapped(path, "<i4", _HEADER.size, num_sequences)
    pointers = mapped(path, "<i8", _HEADER.size + 4 * num_sequences, num_sequences)
    bounds = mapped(path, "<i8", _HEADER.size + 12 * num_sequences, num_bounds)
    modes = mapped(path, "<i1", tables, num_bytes - tables)
    dtype, bin_bytes = np.dtype(TYPES[code]), [_file_bytes(part) for part in paths]
    if any(size % dtype.itemsize for size in bin_bytes):
        raise DataError(f"{paths[0]} or another part of it does not hold whole tokens of the type in {path}")
    _check_sequences(path, sizes, pointers, modes, dtype.itemsize, sum(bin_bytes))
    _check_bounds(path, bounds, num_sequences)
    num_tokens = sum(bin_bytes) // dtype.itemsize

    def ends() -> Iterator[Int64Array]:
        for first, stop in chunks(num_bounds, 1):
            after = bounds[first:stop]
            ends = np.full(len(after), num_tokens, np.int64)
            inside = after < num_sequences
            ends[inside] = pointers[after[inside]] // dtype.itemsize
            yield ends

    tokens = Numbers.join([mapped(part, dtype) for part in paths])
    return TokenFiles(prefix, tuple(paths), dtype, tokens, ends)


def _check_sequences(
    path: Path,
    sizes: npt.NDArray[Any],
    pointers: npt.NDArray[Any],
    modes: npt.NDArray[Any],
    token_bytes: int,
    bin_bytes: int,
) -> None:
    """Raises DataError unless the sequences follow each other from the start of the .bin to its end."""
    at = 0
    for first, stop in chunks(len(sizes)):
        part = sizes[first:stop].astype(np.int64)
        ends = at + np.cumsum(part * token_bytes)
        wrong = (part < 0) | (pointers[first:stop] != np.concatenate([[at], ends[:-1]]))
        if wrong.any():
            number = first + int(np.argmax(wrong))
            raise DataError(f"{path} is damaged: sequence {number:,} does not begin where the one before it ends")
        if modes[first:stop].any():
            number = first + int(np.argmax(modes[first:stop] != 0))
            raise DataError(f"{path}: sequence {number:,} is no text (mode {modes[number]}); growctl trains on text")
        at = int(ends[-1])
    if at != bin_bytes:
        raise DataError(
            f"{path}: its sizes add up to {at:,} bytes, but its .bin has {bin_bytes:,}: one of them is truncated, or"
            " they do not belong together"
        )


def _check_bounds(path: Path, bounds: npt.NDArray[Any], num_sequences: int) -> None:
    """Raises DataError unless the bounds of documents rise from the first sequence to the last."""
    falls = any((bounds[first + 1 : stop + 1] < bounds[first:stop]).any() for first, stop in chunks(len(bounds) - 1))
    if falls or not len(bounds) or bounds[0] != 0 or bounds[-1] != num_sequences:
        raise DataError(
            f"{path} is damaged: its documents do not follow each other from the first sequence to the last"
        )


def _bin_paths(prefix: Path) -> list[Path]:
    """`prefix`.bin or, without it, all its parts."""
    whole = _with_ending(prefix, ".bin")
    if whole.exists():
        return [whole]
    names = [path.name for path in prefix.parent.iterdir() if path.name.startswith(prefix.name)]
    matches = [match for name in names if (match := _PART.fullmatch(name, len(prefix.name)))]
    counts = {int(match[2]) for match in matches}
    if len(counts) != 1:
        raise DataError(f"{whole} does not exist, and there is no one set of parts of it ({prefix.name}-00000-of-...)")
    count = counts.pop()
    return [_with_ending(prefix, f"-{number:05d}-of-{count:05d}.bin") for number in range(count)]


def _file_bytes(path: Path) -> int:
    if not path.is_file():
        raise DataError(f"{path} does not exist, or is not a file")
    return path.stat().st_size


def _with_ending(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


def write_megatron(prefix: Path, source: TokenFiles, on_tokens: Callable[[int], None] = lambda count: None) -> None:
    """Writes the documents of `source` as `prefix`.bin and `prefix`.idx, a sequence each, and syncs both to disk.

    Tokens of two bytes become uint16, others int32. Calls `on_tokens` with numbers of tokens that were written. Raises
    DataError if an id or a document is too large for the format.
    """
    code = 8 if source.dtype.itemsize == 2 else 4
    dtype = np.dtype(TYPES[code])
    largest = np.iinfo(dtype).max

    def tokens() -> Iterator[bytes]:
        for start, stop in chunks(len(source.tokens)):
            ids = source.tokens.read(start, stop - start)
            if ids.min() < 0 or ids.max() > largest:
                raise DataError(f"{source.name} has a token outside 0 to {largest:,}, which is all the format has")
            on_tokens(stop - start)
            yield ids.astype(dtype).tobytes()

    def spans() -> Iterator[tuple[Int64Array, Int64Array]]:
        last = 0
        for ends in source.ends():
            starts = np.concatenate([[last], ends[:-1]])
            if (ends - starts).max() > LARGEST_SIZE:
                raise DataError(f"{source.name} has a document of more than {LARGEST_SIZE:,} tokens")
            yield starts, ends
            last = int(ends[-1])

    def index() -> Iterator[bytes]:
        count = sum(map(len, source.ends()))
        yield _HEADER.pack(MAGIC, VERSION, code, count, count + 1)
        yield from ((ends - starts).astype("<i4").tobytes() for starts, ends in spans())
        yield from ((starts * dtype.itemsize).astype("<i8").tobytes() for starts, _ in spans())
        yield from (np.arange(start, stop, dtype="<i8").tobytes() for start, stop in chunks(count + 1))

    for ending, content in ((".bin", tokens()), (".idx", index())):
        with _with_ending(prefix, ending).open("wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
