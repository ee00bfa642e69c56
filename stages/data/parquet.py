"""Streams one text column out of Parquet files. Imports pyarrow only when it reads one."""

import difflib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, BinaryIO

from stages.data.bad_records import BadRecord, Record
from stages.data.source_errors import DataError

ENDING = ".parquet"
ROWS_AT_A_TIME = 64
"""Rows decoded at a time. Documents of 1 MB are then 64 MB."""
BUFFER_BYTES = 4 * 1024 * 1024
"""Compressed bytes read at a time. Without a buffer, pyarrow loads the whole column of a row group."""
MOST_COLUMNS = 20
"""The most columns that an error names."""


def is_parquet(name: str) -> bool:
    """Whether the name of a file says that it is Parquet."""
    return name.lower().endswith(ENDING)


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
                yield _text(f"{path} row {row}", value, key)


def _text(place: str, value: Any, key: str) -> Record:
    try:
        text = value.as_py()
    except UnicodeDecodeError as error:
        return BadRecord("not UTF-8", place, f"data.source: {place} is not UTF-8 text ({error})", error)
    if text is None:
        return BadRecord("null", place, f"data.text_key: {place} has null under {key!r}; it must have a text")
    assert isinstance(text, str)
    return text


def _require_text_column(path: str, schema: Any, key: str) -> None:
    from pyarrow import types

    if key not in schema.names:
        names = [name if name.isprintable() else repr(name) for name in schema.names]
        shown = ", ".join(names[:MOST_COLUMNS]) + (", ..." if len(names) > MOST_COLUMNS else "")
        close = difflib.get_close_matches(key, names, n=1)
        near = f"; did you mean {close[0]!r}?" if close else "; set the one that holds the text"
        raise DataError(f"data.text_key: {path} has no column {key!r}, only {shown or 'none'}{near}")
    kind = schema.field(key).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        texts = [field.name for field in schema if types.is_string(field.type) or types.is_large_string(field.type)]
        raise DataError(
            f"data.text_key: the column {key!r} of {path} holds {kind}, not text; columns with text:"
            f" {', '.join(texts[:MOST_COLUMNS]) or 'none'}"
        )
