"""Reads the documents of a source: the standard library, a file, a folder or a glob, on any fsspec URL.

A document's split depends only on its text. So equal texts are always in the same split, in one source and across
several, and neither moving or renaming files nor changing the number of workers moves a document to the other split.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

import fsspec
from fsspec.implementations.local import LocalFileSystem

from stages.checkpoint.files import hash_file
from stages.corpus.files import (
    REMEMBERED_BYTES,
    LocalFolders,
    SourceFile,
    SourceHashes,
    kind_of_bytes,
    list_files,
    no_text,
    require_readers,
    source_info,
    stdlib_files,
)
from stages.corpus.location import PYTHON_STDLIB, by_hand, is_about_the_repository, no_source, offline_copy
from stages.corpus.records import BadRecord, Record, is_plain_text, numbered_records
from stages.counted import counted
from stages.data.dataset import CONTENT_HASH_BYTES
from stages.data.errors import DataError, Interrupted, Unreadable, reading
from stages.data.spec import BadRecordKind, BadRecordPolicy, DataSpec, SkippedRecords, SourceSpec, SplitName

CHOICE_VERSION = 3
"""Version of the rules that cut and split documents. It is part of a dataset's key."""
SHARD_BYTES = 64 * 1024 * 1024
"""Source bytes per shard; one worker processes a whole shard. A larger file is one shard."""
LONGEST_NAME = 100
"""The most characters of the source's name that a dataset's name contains."""
HASHED_CHARACTERS = 1 << 20
"""The text of a document is hashed in pieces of this size, so that a large one is not copied whole."""
DEFAULT_MOST_BAD_RECORDS = 100
"""How many records `data.on_bad_record: skip` lets pass without `data.most_bad_records`."""
NAMED_BAD_RECORDS = 5
"""How many skipped records a manifest names."""
Advance = Callable[[int], None]


class Document(NamedTuple):
    """One text. It belongs to exactly one split."""

    id: str
    text: str
    content: bytes
    """The `content_hash` of the text."""
    num_bytes: int
    """Of the text in UTF-8."""
    split: SplitName


class Skipped:
    """Counts the bad records of one pass over a source, and raises where the schedule allows no more."""

    def __init__(self, policy: BadRecordPolicy, most: int | None) -> None:
        self._policy = policy
        self._most = DEFAULT_MOST_BAD_RECORDS if most is None else most
        self.records = SkippedRecords()

    def add(self, record: BadRecord) -> None:
        """Counts `record`. Raises DataError if the schedule does not let it pass."""
        if self._policy == "stop":
            raise DataError(record.message) from record.cause
        self.join(SkippedRecords(counts={record.kind: 1}, first=(f"{record.place} ({record.kind})",)))

    def join(self, records: SkippedRecords) -> Self:
        """Adds what another pass over later files has skipped. Raises DataError beyond the limit."""
        both = (self.records.counts, records.counts)
        counts = {kind: sum(part.get(kind, 0) for part in both) for kind in get_args(BadRecordKind)}
        self.records = SkippedRecords(
            counts={kind: count for kind, count in counts.items() if count},
            first=(*self.records.first, *records.first)[:NAMED_BAD_RECORDS],
        )
        if self.records.total > self._most:
            raise DataError(
                f"data.most_bad_records: the source has more than {counted(self._most, 'bad record')}, such as"
                f" {', '.join(self.records.first)}. Repair them, or set a higher limit"
            )
        return self


@dataclass(frozen=True)
class Corpus:
    """The files of a source, sorted by name, and how they are cut into documents. Can be pickled."""

    spec: DataSpec
    fs: Any
    """The fsspec file system of the files."""
    files: tuple[SourceFile, ...]
    is_folder: bool
    """Whether the source is a folder or a glob, so that a short text file is one document."""

    @property
    def num_bytes(self) -> int:
        """Total size of the files as stored."""
        return sum(file.num_bytes for file in self.files)

    def shards(self) -> tuple[tuple[SourceFile, ...], ...]:
        """Consecutive files in groups of up to SHARD_BYTES. A larger file forms its own group."""
        groups: list[list[SourceFile]] = []
        size = 0
        for file in self.files:
            if not groups or size + file.num_bytes > SHARD_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(file)
            size += file.num_bytes
        return tuple(map(tuple, groups))

    @property
    def num_shuffled_shards(self) -> int:
        """How many shards its documents are shuffled into: a large file gives several."""
        return max(len(self.shards()), -(-self.num_bytes // SHARD_BYTES))

    def remembered_hashes(self, datasets_dir: Path) -> SourceHashes:
        """The hashes of the files, cached in a file of `datasets_dir` unless hashing them again takes no time."""
        if not self.is_local or self.num_bytes < REMEMBERED_BYTES:
            return SourceHashes(None)
        place = hashlib.sha256(self.spec.source.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        return SourceHashes(datasets_dir / f".{plain_name(self.spec.source)}-{place}.hashes.json")

    @property
    def is_local(self) -> bool:
        """Whether the files are local, so that their content can be hashed."""
        return isinstance(self.fs, LocalFileSystem)

    def contents(self, hashes: SourceHashes, advance: Advance = lambda num_bytes: None) -> Iterator[str]:
        """An identifier of each file's content, in order: the sha256 of a local file, the `version` of a remote one.

        Calls `advance` with the number of bytes after each file. Raises DataError if a file cannot be read.
        """
        sha256s = hashes.hashes([Path(file.path) for file in self.files]) if self.is_local else None
        for file in self.files:
            with reading(f"data.source: {file.path}"):
                content = next(sha256s) if sha256s else file.version
            advance(file.num_bytes)
            yield content

    def identified(self, contents: Iterable[str]) -> list[tuple[str, int, str]]:
        """The name and size of each file, with the identifier of its content that `contents` has."""
        return [(file.name, file.num_bytes, content) for file, content in zip(self.files, contents, strict=True)]

    def sha256(self, contents: Iterable[str]) -> str:
        """A hash of what `identified` gives."""
        return hashlib.sha256(json.dumps(self.identified(contents)).encode()).hexdigest()

    def require_unchanged(self, files: Iterable[SourceFile], contents: Iterable[str]) -> None:
        """Raises Interrupted if some of the local files no longer have the content that `contents` has for all files.

        The version of a remote file is not asked for again.
        """
        if not self.is_local:
            return
        expected = {file.name: content for file, content in zip(self.files, contents, strict=True)}
        for file in files:
            with reading(f"data.source: {file.path}"):
                sha256 = hash_file(Path(file.path))
            if sha256 != expected[file.name]:
                raise Interrupted(
                    f"data.source: {file.path} changed while it was prepared; run the same command again to prepare the"
                    " text as it is now"
                )

    def check_separator(self) -> None:
        """Raises DataError if a `document_separator` is set but occurs in no file of the source."""
        separator = self.spec.document_separator
        texts = [file for file in self.files if is_plain_text(file.name)]
        if separator is None or any(len(list(islice(self._read(file), 2))) == 2 for file in texts):
            return
        source = repr(self.spec.source)
        where = f"any of the {len(texts):,} text files of {source}" if texts else f"{source}, which has no plain text"
        raise DataError(
            f"data.document_separator: {separator!r} does not occur in {where};"
            " set the one that separates its documents, or none"
        )

    def documents(
        self,
        files: tuple[SourceFile, ...],
        split: SplitName | None,
        advance: Advance = lambda num_bytes: None,
        skipped: Skipped | None = None,
    ) -> Iterator[Document]:
        """The documents of one split in `files`, or of both (None), in order, without those of white space.

        Calls `advance` with numbers of source bytes, which add up to each file's size by its end. Counts the bad
        records of both splits in `skipped`. Raises DataError if a file cannot be read, or for a bad record that
        `data.on_bad_record` and `data.most_bad_records` do not let pass.
        """
        skipped = skipped or self.skipped()
        for file in files:
            left = file.num_bytes
            for document_id, record in self._read(file):
                if isinstance(record, BadRecord):
                    self._skip(file, record, skipped)
                    continue
                passed = min(left, len(record))
                left -= passed
                advance(passed)
                if record.isspace() or not record:
                    continue
                content, num_bytes = _hashed(record)
                held_out = is_validation(content, self.spec.validation_fraction)
                assigned: SplitName = "validation" if held_out else "train"
                if split in (None, assigned):
                    yield Document(document_id, record, content, num_bytes, assigned)
            advance(left)

    def skipped(self) -> Skipped:
        """A count of bad records, for one pass over files."""
        return Skipped(self.spec.on_bad_record, self.spec.most_bad_records)

    def _skip(self, file: SourceFile, record: BadRecord, skipped: Skipped) -> None:
        try:
            skipped.add(record)
        except DataError as error:
            self._raise_if_no_text(file, error)
            raise

    def _read(self, file: SourceFile) -> Iterator[tuple[str, Record]]:
        try:
            with reading(f"data.source: {file.path}", by_hand(self.spec)):
                yield from numbered_records(self.fs, file.path, file.name, file.num_bytes, self.spec, self.is_folder)
        except DataError as error:
            self._raise_if_no_text(file, error)
            if not (self.spec.source == PYTHON_STDLIB and isinstance(error.__cause__, UnicodeDecodeError | OSError)):
                raise

    def _raise_if_no_text(self, file: SourceFile, error: DataError) -> None:
        """Raises a clearer error if the bytes that were not UTF-8 tell that the file is of another kind."""
        cause = error.__cause__
        if isinstance(cause, UnicodeDecodeError) and (kind := kind_of_bytes(cause.object)):
            raise no_text(file.path, kind, self.is_folder) from error


def open_corpus(spec: DataSpec) -> Corpus:
    """Lists the files of `spec.source`, without the hidden files of folders and globs.

    Raises DataError if there are no files, or if a package needed to read them is missing.
    """
    if spec.source == PYTHON_STDLIB:
        fs, files = stdlib_files()
        return Corpus(spec, fs, tuple(sorted(files, key=lambda file: file.name)), is_folder=True)
    with reading(f"data.source: {spec.source!r}", by_hand(spec)):
        fs, path = fsspec.url_to_fs(offline_copy(spec.source) or spec.source)
        fs = LocalFolders() if type(fs) is LocalFileSystem else fs
        info = source_info(fs, path)
        files = list_files(fs, path, info, spec.include)
    if info is not None and info.get("mimetype") == "text/html" and str(info.get("url", path)).endswith("/"):
        raise DataError(
            f"data.source: {spec.source!r} is a web page, perhaps the listing of a folder; a web server has no folders"
            " that growctl could list, so name one of its files, or download them and set data.source to the copies"
        )
    is_folder = info is None or info["type"] != "file"
    if is_folder:
        files = [file for file in files if not any(part.startswith(".") for part in file.name.split("/"))]
    if spec.include == SourceSpec.model_fields["include"].default:
        files = [file for file in files if not is_about_the_repository(spec.source, file.name)]
    if not files and info is not None and info["type"] == "directory":
        raise Unreadable(f"data.include: no file of the folder {spec.source!r} matches {spec.include!r}")
    if not files:
        raise Unreadable(no_source(spec))
    require_readers(files, is_folder)
    return Corpus(spec, fs, tuple(sorted(files, key=lambda file: file.name)), is_folder)


def content_hash(text: str) -> bytes:
    """A hash of a document's text."""
    return _hashed(text)[0]


def _hashed(text: str) -> tuple[bytes, int]:
    """The `content_hash` of a text, and its length in UTF-8."""
    hashed, num_bytes = hashlib.blake2b(digest_size=CONTENT_HASH_BYTES), 0
    for start in range(0, len(text), HASHED_CHARACTERS):
        encoded = text[start : start + HASHED_CHARACTERS].encode()
        hashed.update(encoded)
        num_bytes += len(encoded)
    return hashed.digest(), num_bytes


def is_validation(content: bytes, validation_fraction: float) -> bool:
    """Whether a document belongs to the validation split. This depends only on the `content_hash` of its text."""
    return int.from_bytes(content[:8], "big") < validation_fraction * 2**64


def plain_name(source: str) -> str:
    """The last part of a source, for the name of what is made of it."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", source.rstrip("/").rpartition("/")[2])
    return plain[:LONGEST_NAME].strip("-.") or "data"
