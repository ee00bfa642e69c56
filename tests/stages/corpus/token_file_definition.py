"""Writes token files byte by byte from the definitions of their formats, and reads their documents."""

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from stages.corpus.token_files import TokenFile

CODES = {"B": 1, "b": 2, "h": 3, "i": 4, "q": 5, "H": 8}
"""Codes of the token types of a Megatron index, by the letter of the type in `struct`."""


def texts_of(file: TokenFile) -> list[list[int]]:
    return [file.tokens[start:end].tolist() for start, end in pairwise([0, *file.ends.tolist()])]


def megatron_index(
    sizes: Sequence[int],
    bounds: Sequence[int],
    kind: str = "H",
    modes: Sequence[int] = (),
    *,
    magic: bytes = b"MMIDIDX\x00\x00",
    version: int = 1,
    code: int | None = None,
    pointers: Sequence[int] | None = None,
) -> bytes:
    """The content of a .idx with sequences of `sizes` tokens, and documents between `bounds`."""
    head = struct.pack("<QBQQ", version, CODES[kind] if code is None else code, len(sizes), len(bounds))
    at = [sum(sizes[:number]) * struct.calcsize(kind) for number in range(len(sizes))] if pointers is None else pointers
    return magic + head + struct.pack(f"<{len(sizes)}i{len(at)}q{len(bounds)}q", *sizes, *at, *bounds) + bytes(modes)


def write_megatron_files(prefix: Path, documents: Sequence[Sequence[Sequence[int]]], kind: str = "H") -> Path:
    """Writes PREFIX.bin and PREFIX.idx. A document is a list of sequences, and a sequence one of tokens."""
    sequences = [sequence for document in documents for sequence in document]
    bounds = [0, *accumulate(map(len, documents))]
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(f"{prefix.name}.idx").write_bytes(megatron_index([*map(len, sequences)], bounds, kind))
    tokens = [token for sequence in sequences for token in sequence]
    prefix.with_name(f"{prefix.name}.bin").write_bytes(struct.pack(f"<{len(tokens)}{kind}", *tokens))
    return prefix


def write_datatrove_files(path: Path, documents: Sequence[Sequence[int]], kind: str = "H") -> Path:
    """Writes NAME.ds, NAME.ds.index, and NAME.ds.metadata as datatrove does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tokens = [token for document in documents for token in document]
    path.write_bytes(struct.pack(f"<{len(tokens)}{kind}", *tokens))
    ends = [*accumulate(map(len, documents))]
    path.with_name(f"{path.name}.index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    text = f"gpt2|{struct.calcsize(kind)}\n{len(tokens)}\n{len(tokens)} T"
    path.with_name(f"{path.name}.metadata").write_text(text)
    return path
