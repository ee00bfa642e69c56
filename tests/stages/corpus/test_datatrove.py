"""stages/token_files/datatrove.py, held against files that tests write byte by byte."""

from pathlib import Path

import pytest

from stages.corpus.token_files import open_token_files
from stages.data.errors import DataError
from tests.stages.corpus.test_megatron import texts_of
from tests.stages.corpus.token_file_definition import write_datatrove_files

TEXTS = [[4, 5, 6], [], [65535]]


@pytest.mark.parametrize("kind", ["H", "I"])
def test_documents_are_read_exactly(tmp_path: Path, kind: str) -> None:
    path = write_datatrove_files(tmp_path / "00000_shuffled.ds", TEXTS, kind)
    write_datatrove_files(tmp_path / "00001_shuffled.ds", [], kind)
    for name in (path, tmp_path):
        first, *others = open_token_files(name)
        assert texts_of(first) == [text for text in TEXTS if text]
        assert [texts_of(files) for files in others] == [[]] * (name == tmp_path)


@pytest.mark.parametrize(
    ("ending", "content", "message"),
    [
        ("", b"\x00" * 7, r"a\.ds has 7 bytes, but its documents end after 4 tokens"),
        (".index", b"\x00" * 9, r"a\.ds has 8 bytes, but its documents end after 0 tokens"),
        (".index", b"\x05" + bytes(7) + b"\x04" + bytes(7), r"a\.ds has 8 bytes, .* or its index is damaged"),
        (".index", b"\xff" * 8, r"a\.ds has 8 bytes, but its documents end after -1 tokens"),
        (".index", b"\x03" + bytes(7), r"a\.ds has 8 bytes, but its documents end after 3 tokens"),
        ("", bytes(24), r"a\.ds has 24 bytes, but its documents end after 4 tokens"),
    ],
)
def test_damage_is_one_error_that_names_the_file(tmp_path: Path, ending: str, content: bytes, message: str) -> None:
    write_datatrove_files(tmp_path / "a.ds", TEXTS)
    (tmp_path / f"a.ds{ending}").write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_token_files(tmp_path / "a.ds")


def test_a_missing_index_and_a_folder_without_files_are_errors(tmp_path: Path) -> None:
    write_datatrove_files(tmp_path / "a.ds", TEXTS)
    (tmp_path / "a.ds.index").unlink()
    with pytest.raises(DataError, match=r"a\.ds\.index does not exist"):
        open_token_files(tmp_path / "a.ds")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty has no token files: no \*\.idx and no \*\.ds"):
        open_token_files(tmp_path / "empty")
