"""Files of tokens that other programs write: of Megatron-LM and GPT-NeoX (.bin, .idx), of datatrove (.ds), raw ones.

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

The definition: megatron/core/datasets/indexed_dataset.py of NVIDIA/Megatron-LM, and
megatron/data/indexed_dataset.py of EleutherAI/gpt-neox, which knows no modes and gives code 6 and 7 other names.

**datatrove**. NAME.ds holds tokens of 2 or 4 bytes (unsigned, little-endian) and nothing else. NAME.ds.index holds the
end of each document as uint64, in tokens. The definition: TokenizedFile in datatrove/pipeline/tokens/tokenizer.py.

**Raw tokens**. NAME.bin holds tokens, little-endian, and has no index. One of nanoGPT has nothing else, one of llm.c
begins with 256 int32 (LLM_C, a version, the number of tokens; llmc/dataloader.h). A document ends in the end of text.
"""

import shlex
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from stages.data.errors import DataError
from stages.data.tokens import Int64Array, chunks, mapped

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Types of tokens by their codes. The others are floating-point types."""
_HEADER = struct.Struct("<9sQBQQ")

RawType = Literal["uint16", "uint32"]
LLM_C = (20240520, 20240801)
"""What the headers of llm.c begin with: the first for uint16, the second for uint32."""
LLM_C_BYTES = 1024
PIECE_TOKENS = 4096
"""A document, where a raw file has no end of text: as much as a piece of a text file without separators."""


@dataclass(frozen=True)
class TokenFile:
    """The tokens of some documents, one document after another."""

    path: Path
    """The file of the tokens: nothing but numbers of the type of `tokens`."""

    tokens: npt.NDArray[np.integer]
    """All tokens, little-endian, read from disk on use. Ids are not checked."""

    ends: Int64Array
    """Where each document that has tokens ends, in tokens from the start. The last ends where the tokens end."""

    has_header: bool = False
    """Whether the file begins with something else, so that it must be copied."""


def open_token_files(path: Path, dtype: RawType | None = None, end_of_text_id: int = -1) -> list[TokenFile]:
    """The token files called `path`, in the order of their names if it is a folder.

    `path` is PREFIX, PREFIX.idx or PREFIX.bin for Megatron's and GPT-NeoX's, NAME.ds for datatrove's; with a `dtype`,
    raw tokens, whose documents end in `end_of_text_id`. Raises DataError if there is nothing, or if a file is damaged.
    """
    if path.is_dir():
        endings = ("*.bin",) if dtype else ("*.idx", "*.ds")
        files = sorted(file for ending in endings for file in path.glob(ending))
        if not files:
            raw = "" if dtype else "; for raw tokens (nanoGPT, llm.c), add --dtype uint16"
            raise DataError(f"{path} has no token files: no {' and no '.join(endings)}{raw}")
        return [opened for file in files for opened in open_token_files(file, dtype, end_of_text_id)]
    if dtype:
        return [_open_raw(path, dtype, end_of_text_id)]
    if path.suffix == ".ds":
        return [_open_datatrove(path)]
    if path.suffix == ".bin" and path.is_file() and not path.with_suffix(".idx").exists():
        raise DataError(f"{path} has no index beside it: if it holds raw tokens (nanoGPT, llm.c), add --dtype uint16")
    return [open_megatron(path.with_suffix("") if path.suffix in (".idx", ".bin") else path)]


def _open_datatrove(path: Path) -> TokenFile:
    num_bytes, index_bytes = _file_bytes(path), _file_bytes(Path(f"{path}.index"))
    ends = mapped(Path(f"{path}.index"), "<u8").view("<i8")
    num_tokens = int(ends[-1]) if len(ends) else 0
    size = num_bytes // max(1, num_tokens) or 2
    if size not in (2, 4) or num_tokens * size != num_bytes or index_bytes % 8 or (np.diff(ends, prepend=0) < 0).any():
        raise DataError(
            f"{path} has {num_bytes:,} bytes, but its documents end after {num_tokens:,} tokens of 2 or 4 bytes: it"
            " or its index is damaged, or they do not belong together"
        )
    return TokenFile(path, mapped(path, f"<u{size}"), _rising(ends))


def import_command(path: str) -> str:
    """How to make a dataset of the tokens in the .bin at `path`."""
    dtype = "" if Path(path).with_suffix(".idx").exists() else "--dtype uint16 "
    return f"growctl data import {shlex.quote(path)} {dtype}--tokenizer TOKENIZER --output DIR"


def _open_raw(path: Path, dtype: RawType, end_of_text_id: int) -> TokenFile:
    num_bytes = _file_bytes(path)
    header = mapped(path, "<i4", count=3).tolist() if num_bytes >= LLM_C_BYTES else [0]
    start, size = LLM_C_BYTES if header[0] in LLM_C else 0, np.dtype(dtype).itemsize
    num_tokens, rest = divmod(num_bytes - start, size)
    if not num_tokens or rest or (start and num_tokens != header[2]):
        said = f", but its header says {header[2]:,} of them" if start else ""
        raise DataError(
            f"{path} has {num_bytes - start:,} bytes of {dtype} tokens, {size} bytes each{said}: it is empty, truncated"
            " or of another --dtype"
        )
    tokens = mapped(path, np.dtype(dtype).newbyteorder("<"), start)
    found = [first + np.flatnonzero(tokens[first:stop] == end_of_text_id) + 1 for first, stop in chunks(num_tokens)]
    ends = np.concatenate(found)
    if not len(ends):
        ends = np.arange(PIECE_TOKENS, num_tokens, PIECE_TOKENS)
    return TokenFile(path, tokens, np.union1d(ends, [num_tokens]), has_header=bool(start))


def open_megatron(prefix: Path) -> TokenFile:
    """The documents of `prefix`.idx and `prefix`.bin.

    Raises DataError, which names the file and what is wrong in it, if they are not what the definition says.
    """
    path, tokens_path = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    bin_bytes, num_bytes = _file_bytes(tokens_path), _file_bytes(path)
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
    magic, version, code, num_sequences, num_bounds = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
    if magic != MAGIC or version != VERSION or code not in TYPES:
        raise DataError(
            f"{path} is no index of Megatron's or GPT-NeoX's with integer tokens: it must begin with MMIDIDX, version"
            f" {VERSION} and one of the types {', '.join(map(str, TYPES))}, as preprocess_data.py writes it with"
            " --dataset-impl mmap"
        )
    dtype, tables = np.dtype(TYPES[code]), _HEADER.size + 12 * num_sequences + 8 * num_bounds
    if num_bytes not in (tables, tables + num_sequences) or bin_bytes % dtype.itemsize:
        raise DataError(
            f"{path} has {num_bytes:,} bytes and its .bin {bin_bytes:,}, but its header says {num_sequences:,}"
            f" sequences and {num_bounds:,} bounds of documents, which take {tables:,}, and tokens of"
            f" {dtype.itemsize} bytes: a file is truncated or damaged"
        )
    sizes = mapped(path, "<i4", _HEADER.size, num_sequences).astype(np.int64) * dtype.itemsize
    starts = mapped(path, "<i8", _HEADER.size + 4 * num_sequences, num_sequences)
    bounds = mapped(path, "<i8", _HEADER.size + 12 * num_sequences, num_bounds)
    if mapped(path, "<i1", tables, num_bytes - tables).any():
        raise DataError(f"{path} has sequences of images (a mode other than 0); growctl trains on text")
    after = np.cumsum(sizes)
    wrong = ""
    if (sizes < 0).any() or (starts != after - sizes).any() or int(after[-1] if len(after) else 0) != bin_bytes:
        wrong = f"its sequences do not follow each other to the end of the .bin, at {bin_bytes:,} bytes"
    elif not num_bounds or (bounds[0], bounds[-1]) != (0, num_sequences) or (bounds[1:] < bounds[:-1]).any():
        wrong = "its documents do not follow each other from the first sequence to the last"
    if wrong:
        raise DataError(f"{path} is damaged or belongs to another .bin: {wrong}")
    ends = _rising(np.append(starts, bin_bytes)[bounds[1:]] // dtype.itemsize)
    return TokenFile(tokens_path, mapped(tokens_path, dtype), ends)


def _rising(ends: Int64Array) -> Int64Array:
    """Ends without those of documents that have no tokens."""
    return ends[np.diff(ends, prepend=0) > 0]


def _file_bytes(path: Path) -> int:
    if not path.is_file():
        raise DataError(f"{path} does not exist, or is not a file")
    return path.stat().st_size
