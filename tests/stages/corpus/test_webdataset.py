"""stages/data/webdataset.py: the documents of tar archives."""

import io
import json
import tarfile
from pathlib import Path

import fsspec
import pytest

from stages.data.errors import DataError
from stages.data.spec import DataSpec
from tests.stages.corpus.small_source import texts

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


@pytest.mark.parametrize("name", ["{}/0.tar", "{}/0.tar.gz", "{}/0.tgz", "{}/0.tar.zst", "memory://webdataset/0.tgz"])
def test_each_sample_of_an_archive_is_a_document_in_the_archives_order(tmp_path: Path, name: str) -> None:
    write_tar(name.format(tmp_path), MEMBERS)
    assert texts(DataSpec(source=name.format(tmp_path))) == ["two", "één", "five"]


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


@pytest.mark.parametrize("damage", ["cut off in a member", "cut off between two members", "a header overwritten"])
def test_an_archive_whose_end_cannot_be_reached_is_an_error_and_not_a_shorter_archive(
    tmp_path: Path, damage: str
) -> None:
    write_tar(f"{tmp_path}/d.tar", {f"{number}.txt": b"x" * 500 for number in range(4)})
    content = (tmp_path / "d.tar").read_bytes()
    third = 2 * 1024  # each member has a header and one block
    overwritten = content[:third] + b"\xff" * 512 + content[third + 512 :]
    if damage == "cut off in a member":
        damaged, message = content[: third - 100], ""
    else:
        damaged = content[:third] if damage.startswith("cut") else overwritten
        message = r" \(the archive is damaged or cut off at byte 2,048"
    (tmp_path / "d.tar").write_bytes(damaged)
    with pytest.raises(DataError, match=rf"data\.source: .*/d\.tar cannot be read{message}"):
        texts(DataSpec(source=str(tmp_path)))
