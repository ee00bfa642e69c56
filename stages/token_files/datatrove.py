"""datatrove's files of tokens: NAME.ds, NAME.ds.index and, if it was asked for, NAME.ds.metadata.

NAME.ds holds tokens of 2 or 4 bytes (unsigned, little-endian) and nothing else. NAME.ds.index holds the end of each
document as uint64, in tokens. NAME.ds.metadata holds lines of text: the tokenizer with `|` and the bytes of a token,
then the number of tokens. The definition: TokenizedFile in datatrove/pipeline/tokens/tokenizer.py.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stages.token_files.files import TokenFiles
from stages.token_files.mapped import MappedNumbers, TokenFileError, chunks, file_bytes, mapped, unreadable

ENDING = ".ds"
SIZES = (2, 4)
"""Bytes of a token."""

MOST_METADATA_BYTES = 1 << 16


def open_datatrove(path: Path) -> TokenFiles:
    """The documents of the file `path` (NAME.ds), after a pass over its index.

    Raises TokenFileError, which names the file and what is wrong in it.
    """
    num_bytes, index = file_bytes(path), _read_index(path.with_name(f"{path.name}.index"))
    last = int(index[-1]) if len(index) else 0
    size = _token_bytes(path, num_bytes, last)
    if last * size != num_bytes:
        raise TokenFileError(
            f"{path} has {num_bytes:,} bytes, but its documents end after {last:,} tokens of {size} bytes: it or its"
            " index is truncated, or they do not belong together"
        )
    return joined(path, [path], [index], size)


def joined(
    name: Path,
    paths: Sequence[Path],
    indices: Sequence[np.ndarray],
    token_bytes: int,
    lengths: Sequence[int | None] | None = None,
) -> TokenFiles:
    """Files of tokens, one after another, with the document ends of each. `lengths`: the tokens of each to use."""
    lengths = lengths or [None] * len(paths)
    parts = [mapped(path, f"<u{token_bytes}", count=length) for path, length in zip(paths, lengths, strict=True)]
    starts = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    ends = MappedNumbers(indices, starts[:-1])
    return TokenFiles(
        name,
        tuple(paths),
        np.dtype(f"<u{token_bytes}"),
        MappedNumbers(parts),
        len(ends),
        lambda first, stop: ends.read(first, stop - first),
    )


def _read_index(path: Path) -> np.ndarray:
    """The document ends in the file `path`, which never fall."""
    if (num_bytes := file_bytes(path)) % 8:
        raise TokenFileError(f"{path} is truncated: it has {num_bytes:,} bytes, and each end of a document has 8")
    index = mapped(path, "<u8")
    before = 0
    for first, stop in chunks(len(index)):
        ends = index[first:stop]
        falls = ends < np.concatenate([np.array([before], np.uint64), ends[:-1]])
        if falls.any() or ends[-1] >= 2**62:
            number = first + int(np.argmax(falls)) if falls.any() else stop - 1
            raise TokenFileError(
                f"{path}: document {number:,} ends at token {index[number]:,}, "
                + ("before the one in front of it" if falls.any() else "more than any file holds")
            )
        before = int(ends[-1])
    return index


def _token_bytes(path: Path, num_bytes: int, num_tokens: int) -> int:
    """The size of a token, from the metadata or else from the number of tokens."""
    metadata = path.with_name(f"{path.name}.metadata")
    if metadata.exists():
        return _recorded_bytes(metadata, num_tokens)
    size = num_bytes // max(1, num_tokens)
    if num_bytes and size not in SIZES:
        raise TokenFileError(
            f"{path} has {num_bytes:,} bytes for {num_tokens:,} tokens; a token has {SIZES[0]} or {SIZES[1]} bytes, so"
            " it or its index is truncated, or they do not belong together"
        )
    return size or SIZES[0]


def _recorded_bytes(metadata: Path, num_tokens: int) -> int:
    if file_bytes(metadata) > MOST_METADATA_BYTES:
        raise TokenFileError(
            f"{metadata} is no metadata of datatrove's: it is larger than {MOST_METADATA_BYTES:,} bytes"
        )
    try:
        lines = metadata.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise unreadable(metadata, error) from error
    size, count = lines[0].rpartition("|")[2] if lines else "", lines[1] if len(lines) > 1 else ""
    if size not in map(str, SIZES):
        raise TokenFileError(
            f"{metadata}: its first line must end in the bytes of a token, |{SIZES[0]} or |{SIZES[1]}, and ends in"
            f" {size[-80:]!r}"
        )
    if count != str(num_tokens):
        raise TokenFileError(f"{metadata}: it says {count[:80]!r} tokens, but the documents end after {num_tokens:,}")
    return int(size)
