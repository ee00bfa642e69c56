"""stages/data/webdataset.py: the documents of tar archives."""

import io
import json
import tarfile
from pathlib import Path

import fsspec
import pytest

from stages.corpus.corpus import open_corpus
from stages.data.errors import DataError
from stages.data.spec import DataSpec

MEMBERS = {
    "a/0002.txt": b"two",
    "a/0002.json": b'{"text": "its caption"}',
    "a/0002.jpg": b"\xff\xd8",
    "a/0001.meta.json": b"{}",
    "a/0001.json": json.dumps({"text": "één", "id": 1}).encode(),
    "0003.v1.txt": b"passed over: its ending is .v1.txt",
    "0004.txt": b" \n",
    "0005.txt": b"\xef\xbb\xbffive",
}


def write_tar(path: str, members: dict[str, bytes]) -> None:
    with (
        fsspec.open(path, "wb", compression="gzip" if path.endswith(".tgz") else "infer") as file,
        tarfile.open(fileobj=file, mode="w|") as archive,
    ):
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def texts(spec: DataSpec) -> list[str]:
    found = open_corpus(spec)
    return [document.text for document in found.documents(found.files, None)]


@pytest.mark.parametrize("name", ["00000.tar", "00000.tar.gz", "00000.tgz", "00000.tar.zst"])
@pytest.mark.parametrize("folder", ["{tmp}", "memory://webdataset"])
def test_each_sample_of_an_archive_is_a_document_in_the_archives_order(tmp_path: Path, folder: str, name: str) -> None:
    source = f"{folder.format(tmp=tmp_path)}/{name}"
    write_tar(source, MEMBERS)
    assert texts(DataSpec(source=source)) == ["two", "één", "five"]


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        ("1.json", b"{", r"data\.source: .*d\.tar member 1\.json is not JSON"),
        ("1.json", b'{"texts": "a"}', r"data\.text_key: .*d\.tar member 1\.json is \{\"texts\":\"a\"\}; it must"),
        ("1.txt", b"caf\xe9", r"data\.source: .*d\.tar member 1\.txt is not UTF-8 text"),
        (
            "1.md",
            b"a",
            r"data\.source: .*d\.tar is a tar archive without members that end in \.txt or \.json, .* unp",
        ),
    ],
)
def test_a_member_without_a_document_is_an_error_that_names_it(
    tmp_path: Path, member: str, content: bytes, message: str
) -> None:
    write_tar(f"{tmp_path}/d.tar", {member: content})
    with pytest.raises(DataError, match=message):
        texts(DataSpec(source=str(tmp_path)))


def test_an_archive_that_was_cut_off_is_an_error(tmp_path: Path) -> None:
    write_tar(f"{tmp_path}/d.tar", {"1.txt": b"x" * 5_000})
    (tmp_path / "d.tar").write_bytes((tmp_path / "d.tar").read_bytes()[:2_000])
    with pytest.raises(DataError, match=r"data\.source: .*/d\.tar cannot be read"):
        texts(DataSpec(source=str(tmp_path)))


@pytest.mark.parametrize("damage", ["cut off between two members", "a header overwritten"])
def test_an_archive_whose_end_cannot_be_reached_is_an_error_and_not_a_shorter_archive(
    tmp_path: Path, damage: str
) -> None:
    write_tar(f"{tmp_path}/d.tar", {f"{number}.txt": b"x" * 500 for number in range(4)})
    content = (tmp_path / "d.tar").read_bytes()
    third = 2 * 1024  # each member has a header and one block
    damaged = content[:third] if damage.startswith("cut") else content[:third] + b"\xff" * 512 + content[third + 512 :]
    (tmp_path / "d.tar").write_bytes(damaged)
    with pytest.raises(DataError, match=r"d\.tar cannot be read \(the archive is damaged or cut off at byte 2,048"):
        texts(DataSpec(source=str(tmp_path)))
