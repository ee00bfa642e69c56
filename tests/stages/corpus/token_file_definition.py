"""Writes token files byte by byte from the definitions of their formats."""

import struct
from collections.abc import Sequence
from pathlib import Path

CODES = {"B": 1, "b": 2, "h": 3, "i": 4, "q": 5, "H": 8}
"""Codes of the token types of a Megatron index, by the letter of the type in `struct`."""


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
    content = magic + struct.pack("<Q", version) + struct.pack("<B", CODES[kind] if code is None else code)
    content += struct.pack("<Q", len(sizes)) + struct.pack("<Q", len(bounds))
    at = [sum(sizes[:number]) * struct.calcsize(kind) for number in range(len(sizes))]
    content += struct.pack(f"<{len(sizes)}i", *sizes)
    content += struct.pack(f"<{len(sizes)}q", *(at if pointers is None else pointers))
    content += struct.pack(f"<{len(bounds)}q", *bounds)
    return content + struct.pack(f"<{len(modes)}b", *modes)


def write_megatron_files(prefix: Path, documents: Sequence[Sequence[Sequence[int]]], kind: str = "H") -> Path:
    """Writes PREFIX.bin and PREFIX.idx. A document is a list of sequences, and a sequence one of tokens."""
    sequences = [sequence for document in documents for sequence in document]
    bounds = [0]
    for document in documents:
        bounds.append(bounds[-1] + len(document))
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(f"{prefix.name}.idx").write_bytes(megatron_index([len(s) for s in sequences], bounds, kind))
    tokens = [token for sequence in sequences for token in sequence]
    prefix.with_name(f"{prefix.name}.bin").write_bytes(struct.pack(f"<{len(tokens)}{kind}", *tokens))
    return prefix


def write_datatrove_files(path: Path, documents: Sequence[Sequence[int]], kind: str = "H") -> Path:
    """Writes NAME.ds, NAME.ds.index, and NAME.ds.metadata as datatrove does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tokens = [token for document in documents for token in document]
    path.write_bytes(struct.pack(f"<{len(tokens)}{kind}", *tokens))
    ends = [sum(map(len, documents[: number + 1])) for number in range(len(documents))]
    path.with_name(f"{path.name}.index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    text = f"gpt2|{struct.calcsize(kind)}\n{len(tokens)}\n{len(tokens)} T"
    path.with_name(f"{path.name}.metadata").write_text(text)
    return path
