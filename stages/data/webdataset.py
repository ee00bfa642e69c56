"""Streams the documents of a WebDataset: a tar archive whose members are samples.

Members whose names agree up to the first dot of the last part are one sample, as in `0001.txt` and `0001.json`. They
follow each other in the archive. A sample's text is its `.txt` member or, without one, the text under `data.text_key`
of its `.json` member. Other members, such as images, are passed over.
"""

import codecs
import re
import tarfile
from collections.abc import Iterator
from itertools import groupby
from tarfile import EOFHeaderError, HeaderError, ReadError  # type: ignore[attr-defined]
from typing import BinaryIO, Self

from stages.data.bad_records import BadRecord, Record
from stages.data.cutting import json_text
from stages.data.source_errors import DataError

COMPRESSIONS = {".tar": None, ".tar.gz": "gzip", ".tgz": "gzip", ".tar.zst": "zstd"}
"""The endings of archives that growctl reads, and fsspec's names of their compressions."""
_ENDING = re.compile(r"(\.tar|\.tar\.gz|\.tgz|\.tar\.zst)$", re.IGNORECASE)


def is_webdataset(name: str) -> bool:
    """Whether the name of a file says that it is a tar archive that growctl reads."""
    return _ENDING.search(name) is not None


def compression(name: str) -> str | None:
    """fsspec's name of the compression of an archive with that name."""
    found = _ENDING.search(name)
    return COMPRESSIONS[found[0].lower()] if found else None


class _Member(tarfile.TarInfo):
    """A member of an archive. After the first one, tarfile takes every damaged header for the archive's end."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        """The next member. Raises ReadError where neither a member nor the block of zeros at the end is found."""
        try:
            return super().fromtarfile(tarfile)
        except EOFHeaderError:
            raise
        except HeaderError as error:
            raise ReadError(f"the archive is damaged or cut off at byte {tarfile.offset:,}: {error}") from None


def webdataset_texts(path: str, stream: BinaryIO, key: str) -> Iterator[Record]:
    """The text of every sample, in the order of the archive, which is read once from start to end.

    Raises DataError if the archive has members, but none that ends in `.txt` or `.json`.
    """
    has_members = has_texts = False
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
        for _, members in groupby(_files(archive), key=lambda member: _sample(member.name)):
            has_members = True
            text: Record | None = None
            for member in members:
                ending = _member_ending(member.name)
                if ending == ".txt" or (ending == ".json" and text is None):
                    text = _read(archive, member, path, key)
            if text is not None:
                has_texts = True
                yield text
    if has_members and not has_texts:
        raise DataError(
            f"data.source: {path} is a tar archive without members that end in .txt or .json, as a WebDataset has;"
            " unpack it, and set data.source to the folder"
        )


def _files(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The regular files of an archive."""
    while (member := archive.next()) is not None:
        vars(archive)["members"] = []  # tarfile would keep every member
        if member.isfile():
            yield member


def _sample(name: str) -> str:
    """The name of the sample that a member belongs to."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(".")[0]


def _member_ending(name: str) -> str:
    return "." + name.rpartition("/")[2].partition(".")[2].lower()


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str, key: str) -> Record:
    file = archive.extractfile(member)
    assert file is not None
    content, place = file.read(), f"{path} member {member.name}"
    if _member_ending(member.name) == ".json":
        return json_text(place, content.removeprefix(codecs.BOM_UTF8), key)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        return BadRecord("not UTF-8", place, f"data.source: {place} is not UTF-8 text ({error})", error)
