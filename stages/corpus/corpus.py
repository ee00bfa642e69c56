"""Reads the documents of a source: the standard library, a file, a folder or a glob, on any fsspec URL.

A document's split depends only on its text. So equal texts are always in the same split, in one source and across
several, and neither moving or renaming files nor changing the number of workers moves a document to the other split.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fsspec.implementations.local import LocalFileSystem

from stages.checkpoint.files import hash_file
from stages.corpus.files import SourceFile, list_files, with_hashes
from stages.corpus.location import by_hand, local_path, no_source
from stages.corpus.records import BadRecord, read_records
from stages.corpus.tasks import Progress
from stages.counted import counted
from stages.data.dataset import CONTENT_HASH_BYTES
from stages.data.errors import DataError, Interrupted, Unreadable, reading
from stages.data.spec import BAD_RECORDS, DataSpec, SkippedRecords, SplitName

CHOICE_VERSION = 3
"""Version of the rules that cut and split documents. It is part of a dataset's key."""
SHARD_BYTES = 64 * 1024 * 1024
"""Source bytes per shard; one worker processes a whole shard. A larger file is one shard."""
LONGEST_NAME = 100
"""The most characters of the source's name that a dataset's name contains."""
CACHED_BYTES = 1_000_000_000
"""A smaller source is hashed every time, which takes half a second."""
DEFAULT_MOST_BAD_RECORDS = 100
"""How many records `data.on_bad_record: skip` lets pass without `data.most_bad_records`."""
MEASURED_CHARACTERS = 32 * 1024 * 1024
"""The most text of a source that is read to tell its size, which takes about a second."""
MEASURED_PLACES = 16
"""The most places of a large source at which that text begins."""
SHORT_DOCUMENT = 500
"""Characters that a document counts as, at least: a million short ones take too long too."""
SAMPLE_BYTES = 256 * 1024
"""About how much text is kept, as a random choice of documents."""
NAMED_BAD_RECORDS = 5
"""How many skipped records a manifest names."""
Advance = Callable[[int], None]


class Document(NamedTuple):
    """One text. It belongs to exactly one split."""

    text: str
    content: bytes
    """The `content_hash` of the text."""
    num_bytes: int
    """Of the text in UTF-8."""
    split: SplitName


class Skipped:
    """Counts the bad records of one pass over a source, and raises where the schedule allows no more."""

    def __init__(self, spec: Any, key: str = "data") -> None:
        """`spec`: the block `key` of the schedule, of a text or of images."""
        self._spec, self._key = spec, key
        self.records = SkippedRecords()

    def add(self, record: BadRecord) -> None:
        """Counts `record`. Raises DataError if the schedule does not let it pass."""
        if self._spec.on_bad_record == "stop":
            raise DataError(record.message)
        self.join(SkippedRecords(counts={record.kind: 1}, first=(f"{record.place} ({record.kind})",)))

    def join(self, later: SkippedRecords) -> None:
        """Adds what another pass over later files has skipped. Raises DataError beyond the limit."""
        counts = Counter(self.records.counts) + Counter(later.counts)
        first = (*self.records.first, *later.first)[:NAMED_BAD_RECORDS]
        self.records = SkippedRecords(counts={kind: counts[kind] for kind in BAD_RECORDS if counts[kind]}, first=first)
        if self.records.total > (most := self._spec.most_bad_records or DEFAULT_MOST_BAD_RECORDS):
            raise DataError(
                f"{self._key}.most_bad_records: the source has more than {counted(most, 'bad record')}, such as"
                f" {', '.join(first)}. Repair them, or set a higher limit"
            )


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

    @property
    def is_local(self) -> bool:
        """Whether the files are local, so that their content can be hashed."""
        return isinstance(self.fs, LocalFileSystem)

    def hashed(self, datasets_dir: Path, progress: Progress) -> "Corpus":
        """The same corpus with the hashes of local files: of a large source, a file in `datasets_dir` remembers them.

        Raises DataError if a file cannot be read.
        """
        advance = progress.meter("reading the source", self.num_bytes).advance
        if not self.is_local:
            return self
        place = hashlib.sha256(self.spec.source.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        cache = datasets_dir / f".{plain_name(self.spec.source)}-{place}.hashes.json"
        return replace(self, files=with_hashes(self.files, cache if self.num_bytes >= CACHED_BYTES else None, advance))

    @property
    def content(self) -> list[tuple[str, int, str]]:
        """The name, the size and the version of each file of a hashed corpus: what determines its documents."""
        return [(file.name, file.num_bytes, file.version) for file in self.files]

    @property
    def sha256(self) -> str:
        """A hash of its content."""
        return hashlib.sha256(json.dumps(self.content).encode()).hexdigest()

    def require_unchanged(self, files: Iterable[SourceFile]) -> None:
        """Raises Interrupted if some of the local files no longer have their hash.

        The version of a remote file is not asked for again.
        """
        for file in files if self.is_local else ():
            with reading(f"data.source: {file.path}"):
                sha256 = hash_file(Path(file.path))
            if sha256 != file.version:
                raise Interrupted(
                    f"data.source: {file.path} changed while it was prepared; run the same command again to prepare the"
                    " text as it is now"
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
        skipped = skipped or Skipped(self.spec)
        for file in files:
            left = file.num_bytes
            for record in self._read(file):
                if isinstance(record, BadRecord):
                    skipped.add(record)
                    continue
                passed = min(left, len(record))
                left -= passed
                advance(passed)
                if record.isspace() or not record:
                    continue
                encoded = record.encode()
                content, num_bytes = content_hash(encoded), len(encoded)
                del encoded
                held_out = is_validation(content, self.spec.validation_fraction)
                assigned: SplitName = "validation" if held_out else "train"
                if split in (None, assigned):
                    yield Document(record, content, num_bytes, assigned)
            advance(left)

    def _read(self, file: SourceFile) -> Iterator[str | BadRecord]:
        with reading(f"data.source: {file.path}", by_hand(self.spec)):
            yield from read_records(self.fs, file, self.spec, self.is_folder)


@dataclass(frozen=True)
class TextSize:
    """What a local source holds: counted, or of a large one estimated from a part."""

    share: float
    """How much of its bytes was read, from 0 to 1."""
    documents: tuple[Document, ...]
    """Those that were read, without their texts."""
    sample: tuple[str, ...]
    """The texts of some of them."""

    def split(self, name: SplitName, validation_fraction: float) -> tuple[int, int]:
        """The number of documents and of UTF-8 bytes in a split."""
        held_out = name == "validation"
        sizes = [
            document.num_bytes
            for document in self.documents
            if is_validation(document.content, validation_fraction) == held_out
        ]
        return round(len(sizes) / self.share), round(sum(sizes) / self.share)


def measure_text(spec: DataSpec) -> TextSize:
    """Reads a local source, or parts of a large one. Raises DataError where preparing it would, in what was read."""
    fs = _Positions()
    corpus = replace(open_corpus(spec), fs=fs)
    shards = corpus.shards()
    places = shards[:: -(-len(shards) // MEASURED_PLACES)]
    kept = SAMPLE_BYTES / min(corpus.num_bytes or 1, MEASURED_CHARACTERS)
    documents: list[Document] = []
    sample: list[str] = []
    num_bytes, skipped = 0, Skipped(corpus.spec)
    for files in places:
        left = MEASURED_CHARACTERS // len(places)
        for file in files:
            if left <= 0:
                break
            for document in corpus.documents((file,), None, skipped=skipped):
                if is_validation(document.content[::-1], kept) or not sample:
                    sample.append(document.text[:SAMPLE_BYTES])
                documents.append(document._replace(text=""))
                left -= max(len(document.text), SHORT_DOCUMENT)
                if left <= 0:
                    num_bytes += min(fs.opened.tell(), file.num_bytes)
                    break
            else:
                num_bytes += file.num_bytes
    return TextSize(num_bytes / corpus.num_bytes if corpus.num_bytes else 1.0, tuple(documents), tuple(sample))


class _Positions(LocalFileSystem):
    """Local files, of which the one opened last tells how far it was read."""

    opened: Any

    def _open(self, *arguments: Any, **options: Any) -> Any:
        self.opened = super()._open(*arguments, **options)
        return self.opened


def require_documents(spec: DataSpec, num_documents: Mapping[SplitName, int], skipped: SkippedRecords) -> None:
    """Raises DataError if a split has no documents."""
    if without := [name for name, number in num_documents.items() if not number]:
        raise DataError(
            f"data.validation_fraction: {spec.validation_fraction} of the"
            f" {counted(sum(num_documents.values()), 'document')} in {spec.source!r} leaves none for"
            f" {' and '.join(without)} (documents with the same text stay together); use another fraction, more text,"
            f" or a data.document_separator that splits it" + (f". growctl skipped {skipped}" if skipped.total else "")
        )


def open_corpus(spec: DataSpec) -> Corpus:
    """Lists the files of `spec.source`. Raises DataError if there are none, or if one of them cannot be read."""
    fs, files, is_folder = list_files(spec)
    if not files and is_folder and (local := local_path(spec.source)) and os.path.isdir(local):
        raise Unreadable(f"data.include: no file of the folder {spec.source!r} matches {spec.include!r}")
    if not files:
        raise Unreadable(no_source(spec))
    return Corpus(spec, fs, tuple(files), is_folder)


def content_hash(encoded: bytes) -> bytes:
    """A hash of a document's text in UTF-8."""
    return hashlib.blake2b(encoded, digest_size=CONTENT_HASH_BYTES).digest()


def is_validation(content: bytes, validation_fraction: float) -> bool:
    """Whether a document belongs to the validation split. This depends only on the `content_hash` of its text."""
    return int.from_bytes(content[:8], "big") < validation_fraction * 2**64


def plain_name(source: str) -> str:
    """The last part of a source, for the name of what is made of it."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", source.rstrip("/").rpartition("/")[2])
    return plain[:LONGEST_NAME].strip("-.") or "data"
