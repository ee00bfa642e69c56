"""Reads the documents of a source: the standard library, a file, a folder or a glob, on any fsspec URL.

A document's split depends only on its text. So equal texts are always in the same split, in one source and across
several, and neither moving or renaming files nor changing the number of workers moves a document to the other split.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pydantic import ConfigDict, Field, PositiveInt, model_validator
from pydantic.json_schema import SkipJsonSchema

from model.strict import Strict
from stages.checkpoint.files import hash_file
from stages.data.bad_records import BadRecord, Policy, Record, Skipped
from stages.data.cutting import as_line_feed
from stages.data.documents import Cutting, is_plain_text, numbered_records
from stages.data.file_kinds import kind_of_bytes, no_text
from stages.data.folders import LocalFolders
from stages.data.hub import by_hand, is_about_the_repository, local_tokenizer, make_local_copy, offline_copy
from stages.data.location import PYTHON_STDLIB, local_path, missing_source, nearest_path, one_spelling, real_file
from stages.data.source_errors import DataError, Interrupted, Unreadable, reading
from stages.data.source_files import SourceFile, list_files, require_readers, source_info, stdlib_files
from stages.data.source_hashes import SourceHashes

DEFAULT_VOCAB_SIZE = 8192
CONTENT_HASH_BYTES = 16
DEFAULT_CACHE_BYTES = 50 * 10**9
DEFAULT_RETRY_SECONDS = 300
NOT_CONTENT = ("workers", "cache_bytes", "cache_dir", "retry_seconds")
"""The keys of a data block that change no token."""

SourceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$")]
"""The name of a source in a mixture."""
SplitName = Literal["train", "validation"]
SPLITS: tuple[SplitName, ...] = ("train", "validation")
HASHED_CHARACTERS = 1 << 20
"""The text of a document is hashed in pieces of this size, so that a large one is not copied whole."""
Advance = Callable[[int], None]


class SourceSpec(Strict):
    """A text, and how it is read."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    source: str = Field(min_length=1, examples=["/data/books/"])
    """`python-stdlib`, or a text file, a folder or a glob: a local path or any fsspec URL (`s3://`, `gs://`,
    `hf://`, `memory://`). Links in a local folder are followed. Files named `.jsonl` (also `.jsonl.gz`,
    `.jsonl.zst`, `.json.gz`) hold one JSON document per line, `.parquet` one per row, `.tar` (also `.tar.gz`,
    `.tar.zst`) the samples of a WebDataset. All other files are UTF-8 text: each file of a folder is a document; a
    single file is cut into pieces of whole lines, about 16 KiB each. Or a prepared dataset: its directory, or a URL of
    one, whose tokens are read on use."""

    include: str = Field("**/*", min_length=1, examples=["**/*.jsonl.zst"])
    """Which files of a folder to read: a glob relative to the folder, for example `**/*.jsonl.zst`. By default all, but
    for README, LICENSE and the like at the root of a repository on the Hugging Face hub."""

    document_separator: str | None = Field(None, min_length=1, examples=["====="])
    """The text between two documents of a plain text file; it belongs to neither. It applies to every such file and
    must occur in at least one of them."""

    text_key: str = Field("text", min_length=1, examples=["content"])
    """The key that holds the text of a JSON document, or the column of a Parquet file."""

    on_bad_record: Policy = Field("stop", examples=["skip"])
    """What a record without a document does: a line that is not JSON, a record without a text under `text_key`, null
    there, bytes that are not UTF-8. `stop` ends with an error that names it; `skip` leaves it out and counts it."""

    most_bad_records: PositiveInt | None = Field(None, examples=[1000], json_schema_extra={"unit": "records"})
    """How many bad records `on_bad_record: skip` leaves out before it stops after all; 100 by default."""

    @model_validator(mode="after")
    def _a_limit_needs_skip(self) -> Self:
        if self.most_bad_records is not None and self.on_bad_record == "stop":
            raise ValueError(
                f"most_bad_records ({self.most_bad_records}) limits on_bad_record: skip, but on_bad_record is stop: set"
                " it to skip, or leave out most_bad_records"
            )
        return self


class DataSpec(SourceSpec):
    """The `data:` block of a schedule: the text, and how it is tokenised."""

    tokenizer: str | None = Field(None, min_length=1, examples=["EleutherAI/gpt-neox-20b"])
    """A `tokenizer.json`, a folder that contains one, or a name on the Hugging Face hub. Without it, a byte-level BPE
    is trained on the train split."""

    vocab_size: int | None = Field(None, ge=257, le=2**20)
    """Entries of the BPE to train; 8192 by default, and at least the 256 bytes and the end of text. A small source may
    give fewer. Not allowed with `tokenizer`, which has its own size."""

    end_of_text: str = Field("<|endoftext|>", min_length=1, examples=["</s>"])
    """The special token after each document. A tokenizer set by `tokenizer` must have it."""

    validation_fraction: float = Field(
        0.01, gt=0, lt=1, examples=[0.05], json_schema_extra={"unit": "share of the documents"}
    )
    """Share of the documents held out for validation. A hash of their texts selects them, so the split is the same on
    every machine, and documents with the same text are always in the same split."""

    shuffle_seed: int | None = Field(None, ge=0, lt=2**32, examples=[1], json_schema_extra={"unit": "pure number"})
    """The seed of a random order of the train documents, across all files; null keeps the order of the source.
    Training reads windows in random order anyway; this also mixes the documents that share a window."""

    workers: PositiveInt | None = Field(None, examples=[4], json_schema_extra={"unit": "processes"})
    """Processes that tokenise, each some files at a time; by default one per core. With `prepare --executor slurm` or
    `ray`, tasks at once. This changes only the time."""

    cache_bytes: PositiveInt = Field(DEFAULT_CACHE_BYTES, examples=[200 * 10**9], json_schema_extra={"unit": "bytes"})
    """For a prepared dataset at a URL: how much of it this machine keeps at most. All processes on a machine share the
    cache, and the ranges used least recently go first. A full disk makes it smaller."""

    cache_dir: str | None = Field(None, min_length=1, examples=["/local/growctl-cache"])
    """For a prepared dataset at a URL: the folder of the cache, best on a local disk. By default `.ranges` beside the
    datasets of the runs directory."""

    retry_seconds: PositiveInt = Field(DEFAULT_RETRY_SECONDS, examples=[900], json_schema_extra={"unit": "seconds"})
    """For a prepared dataset at a URL: how long a fault of the network is retried before training stops with an error.
    A server that denies access is not asked again."""

    shared_tokenizer: SkipJsonSchema[str | None] = Field(None, exclude_if=lambda texts: texts is None)
    """For a source of a mixture without a `tokenizer`: the `texts_hash` of all its sources, which share one that is
    trained on them. growctl writes it; leave it out."""

    @model_validator(mode="after")
    def _one_source_of_tokens(self) -> "DataSpec":
        if self.tokenizer is not None and self.vocab_size is not None:
            raise ValueError(
                f"vocab_size ({self.vocab_size}) is the size of a tokenizer to train, but tokenizer"
                f" {self.tokenizer!r} is set: leave out one of the two"
            )
        return self

    def in_one_spelling(self) -> Self:
        """The same spec with the spelling of local paths that all names of the same files share."""
        path = local_tokenizer(self.tokenizer) if self.tokenizer else None
        tokenizer = real_file(str(path)) if path else self.tokenizer
        return self.model_copy(update={"source": one_spelling(self.source), "tokenizer": tokenizer})

    @property
    def by_hand(self) -> str:
        """How to download the source by hand and which keys to set then, for error messages."""
        return by_hand(self.source, self.include, self.tokenizer)


class Document(NamedTuple):
    """One text. It belongs to exactly one split."""

    id: str
    text: str
    content: bytes
    """The `content_hash` of the text."""
    num_bytes: int
    """Of the text in UTF-8."""
    split: SplitName


@dataclass(frozen=True)
class Corpus:
    """The files of a source, sorted by name, and how they are cut into documents. Can be pickled."""

    spec: DataSpec
    fs: Any
    files: tuple[SourceFile, ...]
    is_folder: bool

    @property
    def num_bytes(self) -> int:
        """Size of all files as stored."""
        return sum(file.num_bytes for file in self.files)

    def shards(self, shard_bytes: int) -> list[tuple[SourceFile, ...]]:
        """Consecutive files in groups of up to `shard_bytes`. A larger file forms its own group."""
        groups: list[list[SourceFile]] = []
        size = shard_bytes
        for file in self.files:
            if not groups or size + file.num_bytes > shard_bytes:
                groups.append([])
                size = 0
            groups[-1].append(file)
            size += file.num_bytes
        return [tuple(group) for group in groups]

    @property
    def is_local(self) -> bool:
        """Whether the files are on this machine, so that their content can be hashed."""
        return isinstance(self.fs, LocalFileSystem)

    def contents(self, hashes: SourceHashes, advance: Advance = lambda num_bytes: None) -> Iterator[str]:
        """An identifier of each file's content, in order: the sha256 of a local file, the `version` of a remote one.

        Calls `advance` with the number of bytes after each file. Raises DataError if a file cannot be read.
        """
        found = hashes.of([Path(file.path) for file in self.files]) if self.is_local else None
        for file in self.files:
            with reading(f"data.source: {file.path}"):
                content = next(found) if found else file.version
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
        known = {file.name: content for file, content in zip(self.files, contents, strict=True)}
        for file in files:
            with reading(f"data.source: {file.path}"):
                found = hash_file(Path(file.path))
            if found != known[file.name]:
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
            f" set the one that separates its documents, or none{as_line_feed(separator)}"
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
        fraction = self.spec.validation_fraction
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
                found: SplitName = "validation" if is_validation(content, fraction) else "train"
                if split in (None, found):
                    yield Document(document_id, record, content, num_bytes, found)
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
        spec = self.spec
        cutting = Cutting(spec.text_key, spec.document_separator, self.is_folder, spec.on_bad_record)
        try:
            with reading(f"data.source: {file.path}", spec.by_hand):
                yield from numbered_records(self.fs, file.path, file.name, file.num_bytes, cutting)
        except DataError as error:
            self._raise_if_no_text(file, error)
            if not (spec.source == PYTHON_STDLIB and isinstance(error.__cause__, UnicodeDecodeError | OSError)):
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
    with reading(f"data.source: {spec.source!r}", spec.by_hand):
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
        raise Unreadable(_no_source(spec))
    require_readers(files, is_folder)
    return Corpus(spec, fs, tuple(sorted(files, key=lambda file: file.name)), is_folder)


def missing_text(spec: DataSpec) -> str | None:
    """The message for a source or a tokenizer that is a local path where nothing is; None if there is none such.

    Reads no file.
    """
    if missing_source(spec.source):
        return _no_source(spec)
    path = local_tokenizer(spec.tokenizer) if spec.tokenizer else None
    return no_tokenizer(path) if path and not path.is_file() else None


def no_tokenizer(path: Path) -> str:
    """The message for a tokenizer's file that does not exist."""
    return f"data.tokenizer: there is no file {str(path.absolute())!r}{nearest_path(str(path))}"


def _no_source(spec: DataSpec) -> str:
    """The message for a source that does not exist, with what to do."""
    missing, path = missing_source(spec.source) or f"{spec.source!r} does not exist", local_path(spec.source)
    if instead := make_local_copy(spec.source, spec.tokenizer):
        return f"data.source: {missing}; {instead}"
    near = nearest_path(path) if path else ""
    return f"data.source: {missing}{near or f'; set it to {PYTHON_STDLIB}, a file, a folder, a glob or a URL of one'}"


def texts_hash(texts: Iterable[SourceSpec]) -> str:
    """A hash of where texts are and how they are read: the same in any order, and in any spelling of local paths."""
    spelled = (text.model_copy(update={"source": one_spelling(text.source)}) for text in texts)
    described = sorted(json.dumps(text.model_dump(mode="json"), sort_keys=True) for text in spelled)
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def content_hash(text: str) -> bytes:
    """A hash of a document's text."""
    return _hashed(text)[0]


def _hashed(text: str) -> tuple[bytes, int]:
    """The `content_hash` of a text, and its length in UTF-8."""
    if len(text) <= HASHED_CHARACTERS:
        encoded = text.encode()
        return hashlib.blake2b(encoded, digest_size=CONTENT_HASH_BYTES).digest(), len(encoded)
    hashed, num_bytes = hashlib.blake2b(digest_size=CONTENT_HASH_BYTES), 0
    for start in range(0, len(text), HASHED_CHARACTERS):
        encoded = text[start : start + HASHED_CHARACTERS].encode()
        hashed.update(encoded)
        num_bytes += len(encoded)
    return hashed.digest(), num_bytes


def joined_hash(hashes: Iterable[bytes]) -> bytes:
    """The hash of several texts from their content hashes, or from such sums: the same in any order, and in any parts.

    It is their sum, without the carry. Unlike exclusive or, it counts how often a text occurs.
    """
    total = sum(int.from_bytes(found, "big") for found in hashes) % 2 ** (8 * CONTENT_HASH_BYTES)
    return total.to_bytes(CONTENT_HASH_BYTES, "big")


def is_validation(content: bytes, validation_fraction: float) -> bool:
    """Whether a document belongs to the validation split. This depends only on the `content_hash` of its text."""
    return int.from_bytes(content[:8], "big") < validation_fraction * 2**64
