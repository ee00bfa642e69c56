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


def test_modes_of_text_are_accepted_and_others_rejected(tmp_path: Path) -> None:
    prefix = write_megatron_files(tmp_path / "images", [[[1, 2]], [[3]]])
    index = tmp_path / "images.idx"
    index.write_bytes(megatron_index([2, 1], [0, 1, 2], modes=[0, 0]))
    assert texts_of(open_megatron(prefix)) == [[1, 2], [3]]
    index.write_bytes(megatron_index([2, 1], [0, 1, 2], modes=[0, 1]))
    with pytest.raises(DataError, match=r"images\.idx has sequences of images"):
        open_megatron(prefix)


SIZES, BOUNDS = [3, 1], [0, 1, 2]
DAMAGED: dict[str, tuple[Any, str]] = {
    "magic": ({"magic": b"PK\x03\x04abcde"}, "must begin with MMIDIDX"),
    "old": ({"magic": b"TNTIDX\x00\x00\x01"}, "must begin with MMIDIDX"),
    "version": ({"version": 2}, "must begin with MMIDIDX, version 1"),
    "float": ({"code": 6}, "one of the types 1, 2, 3, 4, 5, 8"),
    "type": ({"code": 9}, "one of the types 1, 2, 3, 4, 5, 8"),
    "negative": ({"sizes": [5, -1]}, "sequences do not follow each other"),
    "larger": ({"sizes": [3, 2]}, r"to the end of the \.bin, at 8 bytes"),
    "smaller": ({"sizes": [3, 0]}, r"to the end of the \.bin, at 8 bytes"),
    "pointer": ({"pointers": [0, 8]}, "sequences do not follow each other"),
    "outside": ({"pointers": [-6, 0]}, "sequences do not follow each other"),
    "first": ({"bounds": [1, 1, 2]}, "its documents do not follow each other"),
    "none": ({"bounds": []}, "its documents do not follow each other"),
    "falls": ({"bounds": [0, 2, 1]}, "its documents do not follow each other"),
    "huge": ({"bounds": [0, 2**63 - 1, -(2**63)]}, "its documents do not follow each other"),
    "last": ({"bounds": [0, 1]}, "its documents do not follow each other"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_of_an_index_is_one_error_that_names_the_file_and_what_is_wrong(tmp_path: Path, damage: str) -> None:
    changes, message = DAMAGED[damage]
    (tmp_path / "bad.bin").write_bytes(bytes(8))
    (tmp_path / "bad.idx").write_bytes(megatron_index(**({"sizes": SIZES, "bounds": BOUNDS} | changes)))
    with pytest.raises(DataError, match=message) as found:
        open_megatron(tmp_path / "bad")
    assert str(tmp_path / "bad.idx") in str(found.value)


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
