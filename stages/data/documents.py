"""Cuts one file of a source into its documents, by the kind that its name says: the only place that knows all kinds.

All reading streams: files of any size are read in pieces, and only one document is in memory at a time.
"""

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

from stages.data.bad_records import BadRecord, Policy, Record
from stages.data.cutting import BYTE_ORDER_MARK, is_json_lines, json_texts, pieces, separated_texts
from stages.data.parquet import is_parquet, parquet_texts
from stages.data.source_errors import DataError
from stages.data.webdataset import compression, is_webdataset, webdataset_texts

READ_BYTES = 1024 * 1024
LONG_FILE_BYTES = 1024 * 1024
"""A file of a folder is one document up to this size. Larger files are cut into pieces."""


class Cutting(NamedTuple):
    """How the files of a source are cut into documents."""

    text_key: str
    separator: str | None
    is_folder: bool
    """Whether the source is a folder or a glob, so that a short text file is one document."""
    on_bad_record: Policy


def is_plain_text(name: str) -> bool:
    """Whether a file with that name is plain text, which a separator cuts; other kinds hold records."""
    return not (is_json_lines(name) or is_parquet(name) or is_webdataset(name))


def numbered_records(fs: Any, path: str, name: str, num_bytes: int, cutting: Cutting) -> Iterator[tuple[str, Record]]:
    """The id of every document of a file with its text, or with why it has none. Opens the file at `path` of `fs`.

    An id is the file's `name`, with the document's number if the file may hold several. A byte-order mark at the start
    of a text is no part of it.
    """
    for document_id, record in _marked_records(fs, path, name, num_bytes, cutting):
        yield document_id, record.removeprefix(BYTE_ORDER_MARK) if isinstance(record, str) else record


def _marked_records(fs: Any, path: str, name: str, num_bytes: int, cutting: Cutting) -> Iterator[tuple[str, Record]]:
    """As `numbered_records`, with byte-order marks."""
    if is_plain_text(name) and cutting.separator is None and cutting.is_folder and num_bytes <= LONG_FILE_BYTES:
        with _named_line(fs, path), _open_text(fs, path, cutting.on_bad_record) as stream:
            yield name, _checked(path, stream.read())
        return
    for number, record in enumerate(_records(fs, path, name, cutting), start=1):
        yield f"{name}#{number}", record


def _records(fs: Any, path: str, name: str, cutting: Cutting) -> Iterator[Record]:
    if is_json_lines(name):
        with (
            fs.open(path, "rb", compression="infer") as unbuffered,
            io.BufferedReader(unbuffered, READ_BYTES) as stream,  # fsspec's own lines are slow on remote files
        ):
            yield from json_texts(path, stream, cutting.text_key)
    elif is_parquet(name):
        with fs.open(path, "rb") as stream:
            yield from parquet_texts(path, stream, cutting.text_key)
    elif is_webdataset(name):
        with fs.open(path, "rb", compression=compression(name)) as stream:
            yield from webdataset_texts(path, stream, cutting.text_key)
    else:
        with _named_line(fs, path), _open_text(fs, path, cutting.on_bad_record) as stream:
            cut = separated_texts(path, stream, cutting.separator) if cutting.separator else pieces(stream)
            for number, text in enumerate(cut, start=1):
                yield _checked(f"{path} document {number}", text)


def _open_text(fs: Any, path: str, on_bad_record: Policy) -> Any:
    """The text of a file. Under `skip`, bytes that are not UTF-8 become surrogates, which `_checked` finds."""
    errors: Literal["strict", "surrogateescape"] = "strict" if on_bad_record == "stop" else "surrogateescape"
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


def _checked(place: str, text: str) -> Record:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return BadRecord("not UTF-8", place, f"data.source: {place} is not UTF-8 text", error)
    return text
