"""Cuts the text of one file into documents: JSON lines, texts between separators, or pieces of whole lines."""

import codecs
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO, TextIO

import fsspec.utils
import orjson

from stages.data.bad_records import BadRecord, Kind, Record
from stages.data.source_errors import DataError

BYTE_ORDER_MARK = "\ufeff"
JSON_LINES = (".jsonl", ".ndjson")
PIECE_CHARACTERS = 16 * 1024
"""Length at which a plain text file without separators is cut, at the next end of a line."""
LONGEST_DOCUMENT_CHARACTERS = 64 * 1024 * 1024
"""The most text between two separators. Beyond this, the file evidently uses another separator."""

_JSON_TYPES = {
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    list: "a list",
    dict: "an object",
}


def is_json_lines(name: str) -> bool:
    """Whether the name of a file, under any compression, says that it holds JSON lines.

    `.json.gz` does, as C4 and Dolma publish them; `.json` does not. fsspec reads only the first file of a `.zip`.
    """
    stem, _, ending = name.lower().rpartition(".")
    if ending in fsspec.utils.compressions.keys() - {"zip"}:
        return stem.endswith((*JSON_LINES, ".json"))
    return name.lower().endswith(JSON_LINES)


def json_texts(path: str, stream: BinaryIO, key: str) -> Iterator[Record]:
    """The text of every line. Strict, unlike datatrove's JsonlReader, which skips lines that it cannot read."""
    for number, line in enumerate(stream, start=1):
        line = line.removeprefix(codecs.BOM_UTF8)
        yield "" if line.isspace() else json_text(f"{path} line {number}", line, key)


def json_text(place: str, content: bytes, key: str) -> Record:
    """The text under `key` of a JSON document, or why there is none."""
    try:
        record = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        try:
            content.decode()
        except UnicodeDecodeError as invalid:
            return BadRecord("not UTF-8", place, f"data.source: {place} is not UTF-8 text ({invalid})", invalid)
        return BadRecord("not JSON", place, f"data.source: {place} is not JSON ({error})", error)
    text = record.get(key) if isinstance(record, dict) else None
    if isinstance(text, str):
        return text
    kind: Kind = "null" if isinstance(record, dict) and key in record and text is None else "no text"
    message = f"data.text_key: {place} {_found(record, key)}; it must have a text under {key!r}"
    return BadRecord(kind, place, message)


def _found(record: Any, key: str) -> str:
    """What a line of JSON has instead of a text under `key`."""
    if not isinstance(record, dict):
        return "is not a JSON object"
    if key not in record:
        return f"has the keys {sorted(record)}"
    return f"has {_JSON_TYPES[type(record[key])]} under {key!r}"


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
                f" {path}; set the one that this file uses, or none{as_line_feed(separator)}"
            )
    yield rest


def as_line_feed(separator: str) -> str:
    """How to write a separator that has `\\n` or `\\t` as two characters, for the end of a message; else nothing.

    growctl does not read them as a line feed or a tab: `\\newpage` and `\\title` are likely separators too.
    """
    if "\\n" not in separator and "\\t" not in separator:
        return ""
    return (
        f'. It has a backslash and a letter; for a line feed or a tab, write "{separator}" in double quotes in the'
        f" schedule, or $'data.document_separator=\"{separator}\"' on the command line"
    )
