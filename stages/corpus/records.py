"""Cuts one file of a source into its documents, by the kind that its name says.

All reading streams: files of any size are read in pieces, and only one document is in memory at a time.
"""

import codecs
import io
import json
import shlex
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from tarfile import EOFHeaderError, HeaderError, ReadError  # type: ignore[attr-defined]
from typing import Any, BinaryIO, NamedTuple, Self, TextIO

import orjson
from fsspec.utils import infer_compression

from stages.corpus.files import SourceFile, kind_of
from stages.data.errors import DataError
from stages.data.spec import BadRecordKind, SourceSpec

BYTE_ORDER_MARK = "\ufeff"
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


class BadRecord(NamedTuple):
    """A record that holds no document, in the place of one."""

    kind: BadRecordKind
    place: str
    """File and line, row or member."""
    message: str
    """The error for it."""


Record = str | BadRecord
"""What a reader yields: the text of a document, or why there is none."""


def read_records(fs: Any, file: SourceFile, spec: SourceSpec, is_folder: bool) -> Iterator[Record]:
    """Every document of a file of the file system `fs`, or why it is none.

    `is_folder`: whether the source is a folder or a glob, so that a short text file is one document. A byte-order mark
    at the start of a text is no part of it.
    """
    is_plain = kind_of(file.name) in ("text", "JSON lines") and infer_compression(file.name) is None
    for record in _records(fs, file, spec, is_folder):
        if isinstance(record, str):
            yield record.removeprefix(BYTE_ORDER_MARK)
        elif record.kind == "not UTF-8" and is_plain:
            way_out = f"if it is Latin-1, convert it: iconv -f latin1 -t utf-8 {shlex.quote(file.path)} > NEW"
            yield record._replace(message=f"{record.message}; {way_out}")
        else:
            yield record


def _records(fs: Any, file: SourceFile, spec: SourceSpec, is_folder: bool) -> Iterator[Record]:
    path, kind = file.path, kind_of(file.name)
    if kind == "text":
        # Bytes that are not UTF-8 become surrogates, which do not encode.
        how: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": "\n"}
        with fs.open(path, "rt", compression="infer", **how) as stream:
            separator, line = spec.document_separator or "", 1
            if separator:
                texts = separated_texts(path, stream, separator)
            else:
                texts = iter([stream.read()]) if is_folder and file.num_bytes <= LONG_FILE_BYTES else pieces(stream)
            for text in texts:
                try:
                    text.encode()
                    yield text
                except UnicodeEncodeError as error:
                    byte, bad_line = ord(text[error.start]) & 0xFF, line + text.count("\n", 0, error.start)
                    yield _not_utf_8(f"{path} line {bad_line:,}", f"byte 0x{byte:02x}")
                line += text.count("\n") + separator.count("\n")
        return
    with open_unpacked(fs, file) as stream:
        if kind == "JSON lines":
            lines = io.BufferedReader(stream, READ_BYTES)  # fsspec's own lines are slow on remote files
            for number, content in enumerate(lines, start=1):
                content = content.removeprefix(codecs.BOM_UTF8)
                yield "" if content.isspace() else _json_text(f"{path} line {number}", content, spec.text_key)
        else:
            yield from (parquet_texts if kind == "Parquet" else webdataset_texts)(path, stream, spec.text_key)


def open_unpacked(fs: Any, file: SourceFile) -> Any:
    """Opens a file to be read, decompressed if its name says that it is compressed. Parquet does that itself."""
    compression = "gzip" if file.name.lower().endswith(".tgz") else "infer"
    return fs.open(file.path, "rb", compression=None if kind_of(file.name) == "Parquet" else compression)


def _not_utf_8(place: str, why: object) -> BadRecord:
    return BadRecord("not UTF-8", place, f"data.source: {place} is not UTF-8 text ({why})")


def _json_text(place: str, content: bytes, key: str) -> Record:
    """The text under `key` of a JSON document, or why there is none."""
    try:
        record = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        try:  # Python's json and pandas write NaN and Infinity, which are no JSON, for numbers beside the text
            known = json.loads(content.decode(), parse_constant=lambda name: None)
            record = orjson.loads(json.dumps(known))
        except UnicodeDecodeError as invalid:
            return _not_utf_8(place, invalid)
        except (ValueError, RecursionError):
            return BadRecord("not JSON", place, f"data.source: {place} is not JSON ({error})")
    values = record if isinstance(record, dict) else {}
    if isinstance(text := values.get(key), str):
        return text
    has = orjson.dumps(record).decode()[:100]
    message = f"data.text_key: {place} is {has}; it must be a JSON object with a text under {key!r}"
    return BadRecord("null" if key in values and text is None else "no text", place, message)


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
    for chunk in iter(partial(stream.read, READ_BYTES), ""):
        *texts, rest = (rest + chunk).split(separator)
        yield from texts
        if len(rest) > LONGEST_DOCUMENT_CHARACTERS:
            raise DataError(
                f"data.document_separator: {separator!r} does not occur in {len(rest):,} characters of"
                f" {path}; set the one that this file uses, or none"
            )
    yield rest


def parquet_texts(path: str, stream: BinaryIO, key: str) -> Iterator[Record]:
    """The text of every row, in order: column `key` alone, a few rows of a row group at a time.

    Raises DataError if there is no such column, or if it holds no text.
    """
    from pyarrow import parquet, types

    def is_text(kind: Any) -> bool:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))

    with parquet.ParquetFile(stream, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
        texts = [field.name for field in file.schema_arrow if is_text(field.type)]
        if key not in texts:
            raise DataError(
                f"data.text_key: {path} has no column of text {key!r}; set the column that holds the text:"
                f" {', '.join(texts[:20]) or 'none does'}"
            )
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


def webdataset_samples(stream: BinaryIO) -> Iterator[Iterator[tuple[str, str, Callable[[], bytes]]]]:
    """The members of each sample: the sample's name, the rest of the member's own, and what reads it.

    Members whose names agree up to the first dot of the last part are one sample, as in `0001.txt` and `0001.json`.
    They follow each other in the archive, which is read once from start to end.
    """
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
        for _, members in groupby(_members(archive), key=lambda member: member[0]):
            yield members


def webdataset_texts(path: str, stream: BinaryIO, key: str) -> Iterator[Record]:
    """The text of every sample: its `.txt` member or, without one, the text under `key` of its `.json` member.

    Other members, such as images, are passed over. Raises DataError if the archive has members, but none that ends in
    `.txt` or `.json`.
    """
    has_members = has_texts = False
    for members in webdataset_samples(stream):
        has_members, text = True, None
        for sample, ending, read in members:
            if ending == "txt" or (ending == "json" and text is None):
                text = _member_text(read(), ending, f"{path} member {sample}.{ending}", key)
        if text is not None:
            has_texts = True
            yield text
    if has_members and not has_texts:
        raise DataError(
            f"data.source: {path} is a tar archive without members that end in .txt or .json, as a WebDataset has;"
            " unpack it, and set data.source to the folder"
        )


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, str, Callable[[], bytes]]]:
    while (member := archive.next()) is not None:
        vars(archive)["members"] = []  # tarfile would keep every member
        if member.isfile() and (file := archive.extractfile(member)):
            folder, slash, last = member.name.rpartition("/")
            stem, _, ending = last.partition(".")
            yield folder + slash + stem, ending.lower(), file.read


def _member_text(content: bytes, ending: str, place: str, key: str) -> Record:
    if ending == "json":
        return _json_text(place, content.removeprefix(codecs.BOM_UTF8), key)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        return _not_utf_8(place, error)
