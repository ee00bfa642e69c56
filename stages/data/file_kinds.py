"""Recognises files that hold no plain text, by name or by their first bytes, and says what to do with them instead."""

import codecs
import re
from pathlib import PurePosixPath
from typing import NamedTuple

import fsspec.utils

from stages.data.cutting import is_json_lines
from stages.data.parquet import is_parquet
from stages.data.source_errors import DataError
from stages.data.webdataset import is_webdataset


class FileKind(NamedTuple):
    """A kind of file that growctl does not read as text."""

    what: str
    """What it is, with its article."""
    instead: str
    """What to do, as a clause; {name} stands for the file's name, {stem} for the name without its endings."""
    endings: tuple[str, ...]
    magic: bytes | None = None
    """The bytes that such a file begins with; None if there are none that no text begins with."""
    only_alone: bool = False
    """Whether such a file in a folder is text like any other."""


def _table(loader: str) -> str:
    """How to convert a table, which the `datasets` package loads as `loader`."""
    recipe = (
        f'from datasets import load_dataset; load_dataset("{loader}", data_files="{{name}}", split="train")'
        '.to_json("{stem}.jsonl", force_ascii=False)'
    )
    return (
        f"convert it to JSON lines (pip install datasets; python -c '{recipe}'), set data.source to the new file and "
        "data.text_key to the column with the text"
    )


_UNPACK = "unpack it, and set data.source to the folder"
_UTF_8 = "convert it with `iconv -f UTF-16 -t UTF-8`"
_TOKENS = "give the text itself: growctl cannot use tokens or numbers that another program wrote"

KINDS = (
    FileKind("a tar archive", _UNPACK, (".tar", ".tgz", ".tbz2", ".txz")),
    FileKind("a Parquet file", "name it {stem}.parquet, without another compression", (".parquet",), b"PAR1"),
    FileKind("an Arrow file", _table("arrow"), (".arrow", ".feather"), b"ARROW1"),
    FileKind("a table", _table("csv"), (".csv", ".tsv")),
    FileKind("a NumPy array", _TOKENS, (".npy", ".npz"), b"\x93NUMPY"),
    FileKind("a binary file", _TOKENS, (".bin",)),
    FileKind("a PDF", "extract its text, for example by `pdftotext {name} {stem}.txt`", (".pdf",), b"%PDF-"),
    FileKind("text in UTF-16", _UTF_8, (), codecs.BOM_UTF16_LE),
    FileKind("text in UTF-16", _UTF_8, (), codecs.BOM_UTF16_BE),
    FileKind(
        "a Word document", "extract its text, for example by `pandoc {name} -t plain -o {stem}.txt`", (".docx", ".doc")
    ),
    FileKind("a 7z archive", _UNPACK, (".7z",), b"7z\xbc\xaf\x27\x1c"),
    FileKind(
        "a JSON document",
        "name it {stem}.jsonl if each line is an object; if it is a list, write its entries as lines: "
        "jq -c '.[]' {name} > {stem}.jsonl",
        (".json",),
        only_alone=True,
    ),
    FileKind("a zip archive", _UNPACK, (".zip",), b"PK\x03\x04"),  # last: .docx and .npz begin with these bytes too
)


def kind_of_name(name: str, is_folder: bool) -> FileKind | None:
    """The kind of a file with that name, under any compression; None if it may be text.

    `is_folder`: the source is a folder or a glob.
    """
    if is_parquet(name) or is_webdataset(name) or is_json_lines(name):
        return None
    ending = _ending(name)
    return next((kind for kind in KINDS if ending in kind.endings and not (is_folder and kind.only_alone)), None)


def kind_of_bytes(beginning: bytes) -> FileKind | None:
    """The kind of a file with that `beginning`; None if none is known by it."""
    return next((kind for kind in KINDS if kind.magic and beginning.startswith(kind.magic)), None)


def no_text(path: str, kind: FileKind, is_folder: bool) -> DataError:
    """The error for a file of the source that is of `kind`. `is_folder` as in `kind_of_name`."""
    name = PurePosixPath(path).name
    stem = name[: -len("".join(PurePosixPath(name).suffixes)) or None]
    instead = kind.instead.format(name=re.sub(r"[^\w.+-]", "?", name), stem=re.sub(r"[^\w.+-]", "_", stem))
    others = "; or set data.include so that it is left out" if is_folder else ""
    return DataError(
        f"data.source: {path} is {kind.what}, but growctl reads UTF-8 text, JSON lines, Parquet and WebDataset tars;"
        f" {instead}{others}"
    )


def _ending(name: str) -> str:
    """The last ending of a file's name in lower case, without those of a compression that growctl undoes.

    fsspec would undo `.zip` too, but it reads only the first file of an archive.
    """
    suffixes = PurePosixPath(name.lower()).suffixes
    while suffixes[1:] and suffixes[-1] != ".zip" and suffixes[-1].removeprefix(".") in fsspec.utils.compressions:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""
