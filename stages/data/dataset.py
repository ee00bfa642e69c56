"""A dataset: a directory with a manifest, and the checks of its files against it.

A mixture of datasets is a directory with a manifest too, but without tokens: its manifest names the datasets
(stages/corpus/prepared.py writes it, stages/data/samples.py opens it for training).
"""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt

from model.strict import Strict
from stages.checkpoint.files import OnBytes, hash_file
from stages.checkpoint.manifest import TextFacts
from stages.checkpoint.sealed import PlainPath, Sealed, check_files, read_sealed, seal
from stages.counted import counted
from stages.data.errors import DataError
from stages.data.spec import SPLITS, DataSpec, SkippedRecords, SourceName, SplitName
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME

FORMAT_VERSION = 3
LAYOUT_VERSION = 1
"""Version of the token files' layout. It is part of a dataset's identity; the manifest's FORMAT_VERSION is not."""
HASHED_BYTES = 20_000_000_000
"""`check_dataset` hashes datasets up to this size completely."""
REMOTE_NAME = "remote.json"
"""The file in the directory of a dataset whose tokens lie at a URL (stages/data/remote.py)."""
CONTENT_HASH_BYTES = 16

OnProgress = Callable[[str, float | None], None]
"""Receives a description of the work, and the fraction done (None if unknown)."""

Amount = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of bytes, tokens or documents."""


class DatasetFile(Strict):
    """One file of a split, or of a URL."""

    name: PlainPath
    """Path relative to the dataset, for example `train/00000.ds`."""

    bytes: Amount
    sha256: str
    num_tokens: Amount | None = None
    """How many tokens of a shard belong to the split, from its start on; null for all. An imported file may go on with
    tokens of validation."""


class DatasetSplit(Strict):
    """The content of one split."""

    num_tokens: Amount
    """Tokens, including ends of text."""

    num_bytes: Amount
    """UTF-8 bytes of the documents' text, for bits per byte."""

    num_documents: Amount
    num_unended_documents: Amount = 0
    """Documents that do not end in the end of text. growctl ends every text that it tokenises, and leaves imported
    documents as they are."""

    num_inner_ends: Amount = 0
    """Ends of text before the end of their document."""

    text_hash: str | None = None
    """A hash of the documents' texts, whatever their order and the tokenizer; null if it was not prepared from a
    source."""

    files: tuple[DatasetFile, ...]
    """Files in the order of the stream: each shard, followed by its index (document ends: uint64, in tokens)."""

    @property
    def shards(self) -> list[DatasetFile]:
        """The files of tokens."""
        return [file for file in self.files if file.name.endswith(".ds")]

    def __str__(self) -> str:
        documents, tokens = counted(self.num_documents, "document"), counted(self.num_tokens, "token")
        return f"{documents}, {tokens}, {counted(self.num_bytes, 'byte')}"


def joined_hash(hashes: Iterable[bytes]) -> bytes:
    """The hash of several texts from their content hashes, or from such sums: the same in any order, and in any parts.

    It is their sum, without the carry. Unlike exclusive or, it counts how often a text occurs.
    """
    total = sum(int.from_bytes(each, "big") for each in hashes) % 2 ** (8 * CONTENT_HASH_BYTES)
    return total.to_bytes(CONTENT_HASH_BYTES, "big")


def joined_splits(parts: Sequence[DatasetSplit], files: tuple[DatasetFile, ...] = ()) -> DatasetSplit:
    """The sums of several splits, with these `files`; with a hash of the texts if every part has one."""
    hashes = [bytes.fromhex(part.text_hash) for part in parts if part.text_hash is not None]
    return DatasetSplit(
        num_tokens=sum(part.num_tokens for part in parts),
        num_bytes=sum(part.num_bytes for part in parts),
        num_documents=sum(part.num_documents for part in parts),
        num_unended_documents=sum(part.num_unended_documents for part in parts),
        num_inner_ends=sum(part.num_inner_ends for part in parts),
        text_hash=joined_hash(hashes).hex() if len(hashes) == len(parts) else None,
        files=files,
    )


class MixtureEntry(Strict):
    """A source of a mixture."""

    model_config = ConfigDict(allow_inf_nan=False)

    name: SourceName
    directory: str = Field(min_length=1)
    """The source's dataset: a path relative to the directory that the mixture is in, or an absolute one."""

    fingerprint: str
    """The fingerprint of that dataset."""

    weight: PositiveFloat
    """Its base weight, in any unit. The validation loss of the mixture weights the sources by it, at every stage."""

    epochs_at_most: PositiveFloat | None = None
    """How often training may read it; null: as often as needed."""

    def dataset(self, mixture_dir: Path) -> Path:
        """The path of the source's dataset, given that of the mixture."""
        return mixture_dir.parent / self.directory


class PreparedManifest(Sealed):
    """What the manifests of datasets of text and of images have in common."""

    format_version: int = FORMAT_VERSION
    source_sha256: str | None = None
    """sha256 over the names, sizes and content of the source's files; null if it was not prepared from a source."""

    skipped: SkippedRecords = SkippedRecords()
    """The bad records that `data.on_bad_record: skip` left out."""

    fingerprint: str
    """sha256 over everything that determines the samples. Independent of paths, times and the number of workers."""

    @property
    @abstractmethod
    def computed_fingerprint(self) -> str:
        """The fingerprint that follows from the rest of the manifest."""


Manifest = TypeVar("Manifest", bound=PreparedManifest)


class DatasetManifest(PreparedManifest):
    """Everything about a dataset except its tokens. Its `fingerprint` is over the tokenizer and all shards and indices,
    in order; that of a mixture over the names, fingerprints and base weights of its sources."""

    spec: DataSpec
    vocab_size: PositiveInt
    """One more than the tokenizer's largest id: the number of rows that an embedding needs."""

    token_bytes: Literal[2, 4]
    """Size of a stored token, an unsigned little-endian integer."""

    tokenizer_sha256: str
    begin_of_text_id: int | None = None
    end_of_text_id: int
    splits: dict[SplitName, DatasetSplit] = Field(min_length=len(SPLITS))
    sources: tuple[MixtureEntry, ...] = ()
    """The datasets that this one is a mixture of; empty for an ordinary dataset. The splits of a mixture have the sums
    of its sources', and no files."""

    @property
    def files(self) -> list[DatasetFile]:
        """The files of all splits."""
        return [file for split in self.splits.values() for file in split.files]

    def text_facts(self, context_length: int) -> TextFacts:
        """What a model that is trained on this dataset, `context_length` tokens at a time, knows about its text."""
        return TextFacts(
            context_length=context_length,
            begin_of_text=self.spec.begin_of_text,
            begin_of_text_id=self.begin_of_text_id,
            end_of_text=self.spec.end_of_text,
            end_of_text_id=self.end_of_text_id,
            tokenizer_vocab_size=self.vocab_size,
            source=self.spec.source,
        )

    @property
    def computed_fingerprint(self) -> str:
        if self.sources:
            return mixture_fingerprint(self.sources)
        return dataset_fingerprint(self.tokenizer_sha256, self.splits)


def dataset_fingerprint(tokenizer_sha256: str, splits: dict[SplitName, DatasetSplit]) -> str:
    """The fingerprint of a dataset: a sha256 over its tokenizer and its files."""
    hashes = [
        [file.sha256 if file.num_tokens is None else (file.sha256, file.num_tokens) for file in splits[split].files]
        for split in SPLITS
    ]
    return hashlib.sha256(json.dumps([LAYOUT_VERSION, tokenizer_sha256, hashes]).encode()).hexdigest()


def mixture_fingerprint(sources: Sequence[MixtureEntry]) -> str:
    """The fingerprint of a mixture: a sha256 over its sources' names, fingerprints and base weights."""
    parts = [[source.name, source.fingerprint, source.weight] for source in sources]
    return hashlib.sha256(json.dumps([LAYOUT_VERSION, "mixture", parts]).encode()).hexdigest()


def read_dataset_manifest(dataset_dir: Path) -> DatasetManifest:
    """The manifest of a dataset of text. Raises DataError if there is none or it cannot be read."""
    return read_prepared(dataset_dir, DatasetManifest)


def read_prepared(dataset_dir: Path, kind: type[Manifest]) -> Manifest:
    """The manifest of a dataset of one `kind`; raises as `read_dataset_manifest` does."""
    path = dataset_dir / MANIFEST_NAME
    if not path.is_file():
        raise DataError(f"{dataset_dir} is not a dataset: it has no {MANIFEST_NAME}; `growctl prepare` makes one")
    try:
        return read_sealed(path, kind, FORMAT_VERSION, DataError)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


class DatasetPart(NamedTuple):
    """A dataset that samples come from: a source of a mixture, or an ordinary dataset, its own only source."""

    name: str | None
    """None for an ordinary dataset."""

    directory: Path
    manifest: DatasetManifest
    weight: float = 1.0
    """Its base weight, in any unit."""

    epochs_at_most: float | None = None


def dataset_parts(dataset_dir: Path) -> list[DatasetPart]:
    """The datasets that samples of `dataset_dir` come from: a mixture's sources, or itself.

    Raises DataError if one cannot be read.
    """
    manifest = read_dataset_manifest(dataset_dir)
    parts = [
        DatasetPart(source.name, path, read_dataset_manifest(path), source.weight, source.epochs_at_most)
        for source, path in ((source, source.dataset(dataset_dir)) for source in manifest.sources)
    ]
    return parts or [DatasetPart(None, dataset_dir, manifest)]


def dataset_manifest_bytes(manifest: PreparedManifest) -> bytes:
    """The content of manifest.json: `manifest` with its seal."""
    return seal(manifest).model_dump_json(indent=1).encode()


def check_dataset(dataset_dir: Path, on_progress: OnProgress | None = None) -> DatasetManifest:
    """Verifies a dataset, with the hashes of its files if it is no larger than `HASHED_BYTES`. Returns its manifest.

    Calls `on_progress` with a description of the work and the fraction done. Raises DataError as `verify_dataset` does.
    """
    files = [file for part in dataset_parts(dataset_dir) for file in files_here(part.directory, part.manifest)]
    total, done = sum(file.bytes for file in files), 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if on_progress:
            on_progress("checking the dataset", done / max(1, total))

    if total <= HASHED_BYTES:
        advance(0)
    return verify_dataset(dataset_dir, hashes=total <= HASHED_BYTES, on_bytes=advance)


def verify_dataset(dataset_dir: Path, *, hashes: bool = True, on_bytes: OnBytes | None = None) -> DatasetManifest:
    """Checks that every file in the manifest exists with its size and, with `hashes`, its sha256. Returns the manifest.

    The files of a mixture are those of its sources. The tokens of a remote dataset are checked when they are read.
    Raises DataError that names the first file that is missing, differs, or is a link out of the directory, or the first
    source that is not the dataset of the mixture.
    """
    manifest, parts = read_dataset_manifest(dataset_dir), dataset_parts(dataset_dir)
    for source, part in zip(manifest.sources, parts, strict=False):
        if part.manifest.fingerprint != source.fingerprint:
            raise DataError(
                f"{dataset_dir}: its source {source.name!r} is another dataset than the mixture was made of:"
                f" {part.directory} has the fingerprint {part.manifest.fingerprint[:12]}..., not"
                f" {source.fingerprint[:12]}...; restore it, or prepare the mixture again"
            )
    for part in [DatasetPart(None, dataset_dir, manifest), *(parts if manifest.sources else ())]:
        require_tokenizer(part.directory, part.manifest)
        require_fingerprint(part.directory, part.manifest)
        require_files(part.directory, files_here(part.directory, part.manifest), hashes=hashes, on_bytes=on_bytes)
    return manifest


def require_fingerprint(dataset_dir: Path, manifest: PreparedManifest) -> None:
    """Raises DataError if the fingerprint in the manifest is not that of its files."""
    if manifest.computed_fingerprint != manifest.fingerprint:
        raise DataError(f"{dataset_dir} is damaged: the fingerprint in its manifest does not match its files")


def files_here(dataset_dir: Path, manifest: DatasetManifest) -> list[DatasetFile]:
    """The files that a dataset has in its directory: all, or none of a remote one."""
    return [] if (dataset_dir / REMOTE_NAME).exists() else manifest.files


def require_files(
    dataset_dir: Path, files: Iterable[DatasetFile], *, hashes: bool = True, on_bytes: OnBytes | None = None
) -> None:
    """Raises DataError as `verify_dataset` does for one of `files`."""
    entries = [(file.name, file.bytes, file.sha256) for file in files]
    check_files(dataset_dir, entries, lambda what: DataError(f"{dataset_dir} is damaged: {what}"), hashes, on_bytes)


def require_tokenizer(dataset_dir: Path, manifest: DatasetManifest) -> None:
    """Raises DataError if a dataset's tokenizer is not the one in its manifest."""
    tokenizer = dataset_dir / TOKENIZER_NAME
    if not tokenizer.is_file() or hash_file(tokenizer) != manifest.tokenizer_sha256:
        raise DataError(f"{dataset_dir} is damaged: its {TOKENIZER_NAME} is missing or changed")


def require_one_tokenizer(datasets: Mapping[str, Path]) -> None:
    """Raises DataError if the sources of a mixture, each a dataset by its name, do not all have the same tokenizer."""
    (first, expected), *others = ((name, read_dataset_manifest(path)) for name, path in datasets.items())
    for name, manifest in others:
        if manifest.tokenizer_sha256 != expected.tokenizer_sha256:
            raise DataError(
                f"data.mixture: {name!r} ({datasets[name]}) has another tokenizer than {first!r} ({datasets[first]});"
                " the sources of a mixture share one: prepare them with the same data.tokenizer"
            )


def shard_tokens(file: DatasetFile, token_bytes: int) -> int:
    """The number of tokens of a shard that belong to its split."""
    stored = file.bytes // token_bytes
    return stored if file.num_tokens is None else min(stored, file.num_tokens)
