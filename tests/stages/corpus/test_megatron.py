"""stages/token_files/megatron.py, held against files that tests write byte by byte from the format's definition."""

import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stages.corpus.token_files import TokenFile, open_megatron, open_token_files
from stages.data.errors import DataError
from tests.stages.corpus.token_file_definition import CODES, megatron_index, write_megatron_files

DOCUMENTS: list[list[list[int]]] = [[[5, 6, 7], [8]], [[]], [[1], [2, 3]], [], [[9, 100, 101, 102]]]
"""Two have several sequences, one has an empty sequence, one none at all."""
TEXTS = [[5, 6, 7, 8], [1, 2, 3], [9, 100, 101, 102]]
TOKENS = [token for text in TEXTS for token in text]


def texts_of(file: TokenFile) -> list[list[int]]:
    return [file.tokens[start:end].tolist() for start, end in pairwise([0, *file.ends.tolist()])]


@pytest.mark.parametrize("kind", CODES)
def test_documents_are_read_exactly_in_every_type(tmp_path: Path, kind: str) -> None:
    files = open_megatron(write_megatron_files(tmp_path / "corpus_text_document", DOCUMENTS, kind))
    assert texts_of(files) == TEXTS
    assert files.ends.tolist() == [4, 7, 11]
    assert files.tokens[3:8].tolist() == TOKENS[3:8]
    assert files.tokens.itemsize == struct.calcsize(kind)


def test_a_prefix_an_index_a_bin_and_a_folder_name_the_same_documents(tmp_path: Path) -> None:
    write_megatron_files(tmp_path / "v1.5_text", DOCUMENTS)
    for name in ("v1.5_text", "v1.5_text.idx", "v1.5_text.bin", ""):
        [files] = open_token_files(tmp_path / name)
        assert texts_of(files) == TEXTS
    index = megatron_index([3, 1, 0, 1, 2, 4], [0, 2, 3, 5, 5, 6], modes=[0] * 6)
    (tmp_path / "v1.5_text.idx").write_bytes(index)
    assert texts_of(open_megatron(tmp_path / "v1.5_text")) == TEXTS, "modes of text are accepted"


SIZES, BOUNDS = [3, 1], [0, 1, 2]
FOLLOW, DOCUMENTS_FOLLOW = "sequences do not follow each other", "its documents do not follow each other"
DAMAGED: list[tuple[dict[str, Any], str]] = [
    ({"magic": b"TNTIDX\x00\x00\x01"}, "must begin with MMIDIDX"),
    ({"version": 2}, "must begin with MMIDIDX, version 1"),
    ({"code": 6}, "one of the types 1, 2, 3, 4, 5, 8"),
    ({"sizes": [5, -1]}, FOLLOW),
    ({"sizes": [3, 2]}, r"to the end of the \.bin, at 8 bytes"),
    ({"sizes": [3, 0]}, r"to the end of the \.bin, at 8 bytes"),
    ({"pointers": [0, 8]}, FOLLOW),
    ({"pointers": [-6, 0]}, FOLLOW),
    ({"bounds": [1, 1, 2]}, DOCUMENTS_FOLLOW),
    ({"bounds": []}, DOCUMENTS_FOLLOW),
    ({"bounds": [0, 2, 1]}, DOCUMENTS_FOLLOW),
    ({"bounds": [0, 2**63 - 1, -(2**63)]}, DOCUMENTS_FOLLOW),
    ({"bounds": [0, 1]}, DOCUMENTS_FOLLOW),
    ({"modes": [0, 1]}, "has sequences of images"),
]


@pytest.mark.parametrize(("changes", "message"), DAMAGED)
def test_damage_of_an_index_is_one_error_that_names_the_file_and_what_is_wrong(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / "bad.bin").write_bytes(bytes(8))
    (tmp_path / "bad.idx").write_bytes(megatron_index(**({"sizes": SIZES, "bounds": BOUNDS} | changes)))
    with pytest.raises(DataError, match=rf"^.*{tmp_path}/bad\.idx.*{message}"):
        open_megatron(tmp_path / "bad")


def test_truncated_files_and_counts_beyond_the_file_are_rejected(tmp_path: Path) -> None:
    index = megatron_index(SIZES, BOUNDS)
    (tmp_path / "bad.bin").write_bytes(bytes(8))
    for content in (index[:5], index[:30], index[:-1], index + b"\x00", index[:18] + b"\xff" * 16 + index[34:], b""):
        (tmp_path / "bad.idx").write_bytes(content)
        with pytest.raises(DataError, match=r"bad\.idx (has .*truncated|is no index)"):
            open_megatron(tmp_path / "bad")
    (tmp_path / "bad.idx").write_bytes(index)
    (tmp_path / "bad.bin").write_bytes(bytes(7))
    with pytest.raises(DataError, match=r"bad\.idx has .* and its \.bin 7, .* truncated"):
        open_megatron(tmp_path / "bad")
    (tmp_path / "bad.bin").unlink()
    with pytest.raises(DataError, match=r"bad\.bin does not exist"):
        open_megatron(tmp_path / "bad")
    with pytest.raises(DataError, match=r"nothing\.bin does not exist"):
        open_token_files(tmp_path / "nothing")
