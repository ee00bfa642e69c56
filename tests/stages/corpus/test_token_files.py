"""stages/corpus/token_files.py, held against files that tests write byte by byte from the formats' definitions."""

import struct

import pytest

from stages.corpus.token_files import open_token_files
from stages.data.errors import DataError
from tests.stages.corpus.token_file_definition import (
    CODES,
    megatron_index,
    texts_of,
    write_datatrove_files,
    write_megatron_files,
)

DOCUMENTS: list[list[list[int]]] = [[[5, 6, 7], [8]], [[]], [[1], [2, 3]], [], [[9, 100, 101, 102]]]
"""Two have several sequences, one has an empty sequence, one none at all."""
TEXTS = [[5, 6, 7, 8], [1, 2, 3], [9, 100, 101, 102]]


@pytest.mark.parametrize("kind", CODES)
def test_megatron_documents_are_read_in_every_type_by_any_name(tmp_path, kind):
    write_megatron_files(tmp_path / "v1.5_text", DOCUMENTS, kind)
    for name in ("v1.5_text", "v1.5_text.idx", "v1.5_text.bin", ""):
        [file] = open_token_files(tmp_path / name)
        assert texts_of(file) == TEXTS
    assert file.tokens.itemsize == struct.calcsize(kind)
    index = megatron_index([3, 1, 0, 1, 2, 4], [0, 2, 3, 5, 5, 6], kind, modes=[0] * 6)
    (tmp_path / "v1.5_text.idx").write_bytes(index)
    assert texts_of(*open_token_files(tmp_path)) == TEXTS, "modes of text are accepted"


@pytest.mark.parametrize("kind", ["H", "I"])
def test_datatrove_documents_are_read_alone_and_from_a_folder(tmp_path, kind):
    with pytest.raises(DataError, match=r"has no token files: no \*\.idx and no \*\.ds"):
        open_token_files(tmp_path)
    path = write_datatrove_files(tmp_path / "00000_shuffled.ds", [[4, 5, 6], [], [65535]], kind)
    write_datatrove_files(tmp_path / "00001_shuffled.ds", [], kind)
    assert [texts_of(file) for file in open_token_files(path)] == [[[4, 5, 6], [65535]]]
    assert [texts_of(file) for file in open_token_files(tmp_path)] == [[[4, 5, 6], [65535]], []]


def index(**changes: object) -> bytes:
    return megatron_index(**{"sizes": [3, 1], "bounds": [0, 1, 2], **changes})  # type: ignore[arg-type]


INDEX = index()
FOLLOW, DOCUMENTS_FOLLOW = "its sequences do not follow each other", "its documents do not follow each other"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (index(magic=b"TNTIDX\x00\x00\x01"), "is no index .* must begin with MMIDIDX, version 1"),
        (index(code=6), "one of the types 1, 2, 3, 4, 5, 8"),
        (INDEX[:-1], "has 81 bytes and its .bin 8, .* truncated"),
        (INDEX[:18] + b"\xff" * 16 + INDEX[34:], "has 82 bytes"),
        (index(sizes=[5, -1]), FOLLOW),
        (index(sizes=[3, 2]), r"to the end of the \.bin, at 8 bytes"),
        (index(pointers=[0, 8]), FOLLOW),
        (index(bounds=[1, 1, 2]), DOCUMENTS_FOLLOW),
        (index(bounds=[0, 2, 1]), DOCUMENTS_FOLLOW),
        (index(bounds=[0, 1]), DOCUMENTS_FOLLOW),
        (index(modes=[0, 1]), "has sequences of images"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_damage_of_a_megatron_index_is_an_error_that_names_it(tmp_path, content, message):
    (tmp_path / "bad.bin").write_bytes(bytes(8))
    (tmp_path / "bad.idx").write_bytes(content)
    with pytest.raises(DataError, match=rf"^.*{tmp_path}/bad\.idx.*{message}"):
        open_token_files(tmp_path / "bad")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.ds", bytes(24), r"a\.ds has 24 bytes, but its documents end after 4 tokens"),
        ("a.ds.index", b"\x05" + bytes(7) + b"\x04" + bytes(7), r"a\.ds has 8 bytes, .* or its index is damaged"),
        ("a.ds.index", b"\xff" * 8, r"a\.ds has 8 bytes, but its documents end after -1 tokens"),
        ("a.ds.index", None, r"a\.ds\.index does not exist"),
        ("m.bin", bytes(7), r"m\.idx has .* and its \.bin 7, .* truncated"),
        ("m.bin", None, r"m\.bin does not exist"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,
)
def test_a_damaged_or_missing_file_beside_another_is_an_error_that_names_it(tmp_path, name, content, message):
    write_datatrove_files(tmp_path / "a.ds", [[4, 5, 6], [], [65535]])
    write_megatron_files(tmp_path / "m", [[[1, 2, 3], [4]]])
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_token_files(tmp_path / {"a": "a.ds", "m": "m"}[name[0]])
