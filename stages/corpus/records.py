"""Cuts one file of a source into its documents, by the kind that its name says.

All reading streams: files of any size are read in pieces, and only one document is in memory at a time.
"""

import codecs
import io
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from tarfile import EOFHeaderError, HeaderError, ReadError  # type: ignore[attr-defined]
from typing import Any, BinaryIO, Literal, NamedTuple, Self, TextIO

import fsspec.utils
import orjson

from stages.data.errors import DataError
from stages.data.spec import BadRecordKind, SourceSpec

BYTE_ORDER_MARK = "\ufeff"
PARQUET = ".parquet"
READ_BYTES = 1024 * 1024
LONG_FILE_BYTES = 1024 * 1024
"""A file of a folder is one document up to this size. Larger files are cut into pieces."""
PIECE_CHARACTERS = 16 * 1024
"""Length at which a plain text file without separators is cut, at the next end of a line."""
LONGEST_DOCUMENT_CHARACTERS = 64 * 1024 * 1024
"""The most text between two separators. Beyond this, the file evidently uses another separator."""
ROWS_AT_A_TIME = 64
"""Parquet rows decoded at a time. Documents of 1 MB are then 64 MB."""
BUFFER_BYTES = 4 * 1024 * 1024
"""Compressed bytes of Parquet read at a time. Without a buffer, pyarrow loads the whole column of a row group."""

_ARCHIVE = re.compile(r"(\.tar|\.tar\.gz|\.tgz|\.tar\.zst)$", re.IGNORECASE)
_ARCHIVE_COMPRESSIONS = {".tar": None, ".tar.gz": "gzip", ".tgz": "gzip", ".tar.zst": "zstd"}


class BadRecord(NamedTuple):
    """A record that holds no document, in the place of one."""

    kind: BadRecordKind
    place: str
    """File and line, row or member."""
    message: str
    """The error for it."""
    cause: Exception | None = None


Record = str | BadRecord
"""What a reader yields: the text of a document, or why there is none."""


def is_json_lines(name: str) -> bool:
    """Whether the name of a file, under any compression, says that it holds JSON lines.

    `.json.gz` does, as C4 and Dolma publish them; `.json` does not. fsspec reads only the first file of a `.zip`.
    """
    stem, _, ending = name.lower().rpartition(".")
    if ending in fsspec.utils.compressions.keys() - {"zip"}:
        return stem.endswith((".jsonl", ".ndjson", ".json"))
    return name.lower().endswith((".jsonl", ".ndjson"))


def is_parquet(name: str) -> bool:
    """Whether the name of a file says that it is Parquet."""
    return name.lower().endswith(PARQUET)


def is_webdataset(name: str) -> bool:
    """Whether the name of a file says that it is a tar archive that growctl reads."""
    return _ARCHIVE.search(name) is not None


def is_plain_text(name: str) -> bool:
    """Whether a file with that name is plain text, which a separator cuts; other kinds hold records."""
    return not (is_json_lines(name) or is_parquet(name) or is_webdataset(name))


def numbered_records(
    fs: Any, path: str, name: str, num_bytes: int, spec: SourceSpec, is_folder: bool
) -> Iterator[tuple[str, Record]]:
    """The id of every document of a file with its text, or with why it has none. Opens the file at `path` of `fs`.

    `is_folder`: whether the source is a folder or a glob, so that a short text file is one document. An id is the
    file's `name`, with the document's number if the file may hold several. A byte-order mark at the start of a text is
    no part of it.
    """
    if is_plain_text(name) and spec.document_separator is None and is_folder and num_bytes <= LONG_FILE_BYTES:
        with _named_line(fs, path), _open_text(fs, path, spec) as stream:
            yield name, _unmarked(_checked(path, stream.read()))
        return
    for number, record in enumerate(_records(fs, path, name, spec), start=1):
        yield f"{name}#{number}", _unmarked(record)


def _unmarked(record: Record) -> Record:
    return record.removeprefix(BYTE_ORDER_MARK) if isinstance(record, str) else record


def _records(fs: Any, path: str, name: str, spec: SourceSpec) -> Iterator[Record]:
    if is_json_lines(name):
        with (
            fs.open(path, "rb", compression="infer") as unbuffered,
            io.BufferedReader(unbuffered, READ_BYTES) as stream,  # fsspec's own lines are slow on remote files
        ):
            for number, line in enumerate(stream, start=1):
                line = line.removeprefix(codecs.BOM_UTF8)
                yield "" if line.isspace() else _json_text(f"{path} line {number}", line, spec.text_key)
    elif is_parquet(name):
        with fs.open(path, "rb") as stream:
            yield from parquet_texts(path, stream, spec.text_key)
    elif archive := _ARCHIVE.search(name):
        with fs.open(path, "rb", compression=_ARCHIVE_COMPRESSIONS[archive[0].lower()]) as stream:
            yield from webdataset_texts(path, stream, spec.text_key)
    else:
        separator = spec.document_separator
        with _named_line(fs, path), _open_text(fs, path, spec) as stream:
            texts = separated_texts(path, stream, separator) if separator else pieces(stream)
            for number, text in enumerate(texts, start=1):
                yield _checked(f"{path} document {number}", text)


def _open_text(fs: Any, path: str, spec: SourceSpec) -> Any:
    """The text of a file. Under `skip`, bytes that are not UTF-8 become surrogates, which `_checked` finds."""
    errors: Literal["strict", "surrogateescape"] = "strict" if spec.on_bad_record == "stop" else "surrogateescape"
    return fs.open(path, "rt", encoding="utf-8", errors=errors, newline="\n", compression="infer")


@contextmanager
def _named_line(fs: Any, path: str) -> Iterator[None]:
    """Names the line of the first byte that is not UTF-8. The decoder knows only where it is in its own buffer."""
    try:
        yield
    except UnicodeDecodeError as error:
        where = f"line {_first_bad_line(fs, path):,}, byte 0x{error.object[error.start]:02x}: {error.reason}"
        raise DataError(f"data.source: {path} is not UTF-8 text ({where})") from error


def _first_bad_line(fs: Any, path: str) -> int:
    """The number of the first line of a file that is not UTF-8. Reads the file again, in pieces."""
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    with fs.open(path, "rb", compression="infer") as stream:
        for piece in iter(partial(stream.read, READ_BYTES), b""):
            try:
                decoder.decode(piece)
            except UnicodeDecodeError as error:
                return line + error.object[: error.start].count(b"\n")
            line += piece.count(b"\n")
    return line  # the file ends within a character


def _not_utf_8(place: str, error: Exception) -> BadRecord:
    return BadRecord("not UTF-8", place, f"data.source: {place} is not UTF-8 text ({error})", error)


def _checked(place: str, text: str) -> Record:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return _not_utf_8(place, error)
    return text


def _json_text(place: str, content: bytes, key: str) -> Record:
    """The text under `key` of a JSON document, or why there is none."""
    try:
        record = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        try:
            content.decode()
        except UnicodeDecodeError as invalid:
            return _not_utf_8(place, invalid)
        return BadRecord("not JSON", place, f"data.source: {place} is not JSON ({error})", error)
    text = record.get(key) if isinstance(record, dict) else None
    if isinstance(text, str):
        return text
    if not isinstance(record, dict):
        has = "is not a JSON object"
    elif key not in record:
        has = f"has the keys {sorted(record)}"
    else:
        has = f"has {orjson.dumps(text).decode()[:40]} under {key!r}"
    kind: BadRecordKind = "null" if isinstance(record, dict) and key in record and text is None else "no text"
    return BadRecord(kind, place, f"data.text_key: {place} {has}; it must have a text under {key!r}")


def pieces(stream: TextIO) -> Iterator[str]:
    """Pieces of consecutive whole lines, each PIECE_CHARACTERS or slightly more. Longer lines are cut too."""
    lines, size = [], 0
    while line := stream.readline(PIECE_CHARACTERS):
        lines.append(line)
        size += len(line)
        if size >= PIECE_CHARACTERS:
            yield "".join(lines)
            lines, size = [], 0
    if lines:
        yield "".join(lines)


def separated_texts(path: str, stream: TextIO, separator: str) -> Iterator[str]:
    """The texts between the separators. Raises DataError if a text between two of them is too long for one."""
    rest = ""
    for chunk in iter(partial(stream.read, 1024 * 1024), ""):
        *texts, rest = (rest + chunk).split(separator)
        yield from texts
        if len(rest) > LONGEST_DOCUMENT_CHARACTERS:
            raise DataError(
                f"data.document_separator: {separator!r} does not occur in {len(rest):,} characters of"
                f" {path}; set the one that this file uses, or none"
            )
    yield rest


def require_pyarrow(path: str) -> None:
    """Raises DataError if pyarrow is missing."""
    if find_spec("pyarrow") is None:
        raise DataError(f"data.source: {path} is a Parquet file; to read it, `pip install pyarrow`")


def parquet_texts(path: str, stream: BinaryIO, key: str) -> Iterator[Record]:
    """The text of every row, in order: column `key` alone, a few rows of a row group at a time.

    Raises DataError if there is no such column, or if it holds no text.
    """
    from pyarrow import parquet

    with parquet.ParquetFile(stream, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
        _require_text_column(path, file.schema_arrow, key)
        row = 0
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=[key], use_threads=False):
            for value in batch.column(0):
                row += 1
                place = f"{path} row {row}"
                try:
                    text = value.as_py()
                except UnicodeDecodeError as error:
                    yield _not_utf_8(place, error)
                    continue
                null = f"data.text_key: {place} has null under {key!r}; it must have a text"
                yield BadRecord("null", place, null) if text is None else text


def _require_text_column(path: str, schema: Any, key: str) -> None:
    from pyarrow import types

    def is_text(kind: Any) -> bool:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))

    if key not in schema.names or not is_text(schema.field(key).type):
        texts = [field.name for field in schema if is_text(field.type)]
        what = f"column {key!r} holds {schema.field(key).type}" if key in schema.names else f"has no column {key!r}"
        raise DataError(
            f"data.text_key: {path}: {what}; set the column that holds the text: {', '.join(texts[:20]) or 'none does'}"
        )


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

    Members whose names agree up to the first dot of the last part are one sample, as in `0001.txt` and `0001.json`.
    They follow each other in the archive. A sample's text is its `.txt` member or, without one, the text under `key` of
    its `.json` member. Other members, such as images, are passed over. Raises DataError if the archive has members, but
    none that ends in `.txt` or `.json`.
    """
    has_members = has_texts = False
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
        for _, members in groupby(_members(archive), key=lambda member: member[0]):
            has_members = True
            text: Record | None = None
            for _, ending, member in members:
                if ending == "txt" or (ending == "json" and text is None):
                    key_of_json = key if ending == "json" else None
                    text = _member_text(archive, member, f"{path} member {member.name}", key_of_json)
            if text is not None:
                has_texts = True
                yield text
    if has_members and not has_texts:
        raise DataError(
            f"data.source: {path} is a tar archive without members that end in .txt or .json, as a WebDataset has;"
            " unpack it, and set data.source to the folder"
        )


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """The regular files of an archive, each with the name of its sample and its ending."""
    while (member := archive.next()) is not None:
        vars(archive)["members"] = []  # tarfile would keep every member
        if member.isfile():
            folder, slash, last = member.name.rpartition("/")
            stem, _, ending = last.partition(".")
            yield folder + slash + stem, ending.lower(), member


def _member_text(archive: tarfile.TarFile, member: tarfile.TarInfo, place: str, key: str | None) -> Record:
    file = archive.extractfile(member)
    assert file is not None
    content = file.read()
    if key is not None:
        return _json_text(place, content.removeprefix(codecs.BOM_UTF8), key)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        return _not_utf_8(place, error)
