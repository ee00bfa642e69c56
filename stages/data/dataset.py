"""A dataset: its manifest, and its memory-mapped token shards as batches.

The position in it is one integer.

A training sample depends only on the seed and its global index. It does not depend on the number of ranks, on the
micro-batch, or on where a run was stopped. Shapes: B batch, T sequence.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveInt

from model.strict import Strict
from stages.checkpoint.files import OnBytes, hash_file, hash_files
from stages.checkpoint.sealed import DocumentError, PlainPath, Sealed, check_inside, read_sealed, seal
from stages.checkpoint.text_facts import TextFacts
from stages.counted import counted
from stages.data.bad_records import SkippedRecords
from stages.data.corpus import SPLITS, DataError, DataSpec, SplitName
from stages.data.sample_order import Blocks, Int64Array, WindowOrder
from stages.data.sample_range import EndlessSamples
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME
from stages.token_files.mapped import MappedNumbers, mapped

FORMAT_VERSION = 1
LAYOUT_VERSION = 1
"""Version of the token files' layout. It is part of a dataset's identity; the manifest's FORMAT_VERSION is not."""
HASHED_BYTES = 20_000_000_000
"""`check_dataset` hashes datasets up to this size completely."""

Amount = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of bytes, tokens or documents."""


class DatasetFile(Strict):
    """One file of a split."""

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
    """Tokens, including the end of text after each document."""

    num_bytes: Amount
    """UTF-8 bytes of the documents' text, for bits per byte."""

    num_documents: Amount
    text_hash: str | None = None
    """A hash of the documents' texts, whatever their order and the tokenizer; null if it was not prepared from a
    source."""

    files: tuple[DatasetFile, ...]
    """Files in the order of the stream: each shard, followed by its index (document ends: uint64, in tokens)."""


class DatasetManifest(Sealed):
    """Everything about a dataset except its tokens."""

    spec: DataSpec
    vocab_size: PositiveInt
    """One more than the tokenizer's largest id: the number of rows that an embedding needs."""

    token_bytes: Literal[2, 4]
    """Size of a stored token, an unsigned little-endian integer."""

    tokenizer_sha256: str
    end_of_text_id: int
    splits: dict[SplitName, DatasetSplit] = Field(min_length=len(SPLITS))
    source_sha256: str | None = None
    """sha256 over the names, sizes and content of the source's files; null if it was not prepared from a source."""

    skipped: SkippedRecords = SkippedRecords()
    """The bad records that `data.on_bad_record: skip` left out."""

    fingerprint: str
    """sha256 over the tokenizer and all files, in order. Independent of paths, times and the number of workers."""

    @property
    def files(self) -> list[DatasetFile]:
        """The files of all splits."""
        return [file for split in self.splits.values() for file in split.files]

    def text_facts(self, context_length: int) -> TextFacts:
        """What a model that is trained on this dataset, `context_length` tokens at a time, knows about its text."""
        return TextFacts(
            context_length=context_length,
            end_of_text=self.spec.end_of_text,
            end_of_text_id=self.end_of_text_id,
            tokenizer_vocab_size=self.vocab_size,
            source=self.spec.source,
        )

    @property
    def num_file_bytes(self) -> int:
        """Total size of the files of all splits."""
        return sum(file.bytes for file in self.files)


def dataset_fingerprint(tokenizer_sha256: str, splits: dict[SplitName, DatasetSplit]) -> str:
    """The fingerprint of a dataset: a sha256 over its tokenizer and its files."""
    hashes = [[_identity(file) for file in splits[split].files] for split in SPLITS]
    return hashlib.sha256(json.dumps([LAYOUT_VERSION, tokenizer_sha256, hashes]).encode()).hexdigest()


def _identity(file: DatasetFile) -> str | tuple[str, int]:
    return file.sha256 if file.num_tokens is None else (file.sha256, file.num_tokens)


def read_dataset_manifest(dataset_dir: Path) -> DatasetManifest:
    """The manifest of a dataset. Raises DataError if there is none or it cannot be read."""
    path = dataset_dir / MANIFEST_NAME
    if not path.is_file():
        raise DataError(f"{dataset_dir} is not a dataset: it has no {MANIFEST_NAME}; `growctl prepare` makes one")
    try:
        return read_sealed(path, DatasetManifest, FORMAT_VERSION)
    except DocumentError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def dataset_manifest_bytes(manifest: DatasetManifest) -> bytes:
    """The content of manifest.json: `manifest` with its seal."""
    return seal(manifest.model_copy(update={"format_version": FORMAT_VERSION})).model_dump_json(indent=1).encode()


def check_dataset(dataset_dir: Path, on_progress: Callable[[str, float | None], None] | None = None) -> DatasetManifest:
    """Verifies a dataset, with the hashes of its files if it is no larger than `HASHED_BYTES`. Returns its manifest.

    Calls `on_progress` with a description of the work and the fraction done. Raises DataError as `verify_dataset` does.
    """
    total = read_dataset_manifest(dataset_dir).num_file_bytes
    if total > HASHED_BYTES:
        return verify_dataset(dataset_dir, hashes=False)
    if on_progress is None:
        return verify_dataset(dataset_dir)
    report, done = on_progress, 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        report("checking the dataset", done / max(1, total))

    report("checking the dataset", 0.0)
    return verify_dataset(dataset_dir, on_bytes=advance)


def verify_dataset(dataset_dir: Path, *, hashes: bool = True, on_bytes: OnBytes | None = None) -> DatasetManifest:
    """Checks that every file in the manifest exists with its size and, with `hashes`, its sha256. Returns the manifest.

    Raises DataError that names the first file that is missing, differs, or is a link out of the directory.
    """
    manifest = read_dataset_manifest(dataset_dir)
    for file in manifest.files:
        _require_size(dataset_dir, file)
    tokenizer = dataset_dir / TOKENIZER_NAME
    if not tokenizer.is_file() or hash_file(tokenizer) != manifest.tokenizer_sha256:
        raise DataError(f"{dataset_dir} is damaged: its {TOKENIZER_NAME} is missing or changed")
    if dataset_fingerprint(manifest.tokenizer_sha256, manifest.splits) != manifest.fingerprint:
        raise DataError(f"{dataset_dir} is damaged: the fingerprint in its manifest does not match its files")
    if hashes:
        found = hash_files(dataset_dir / file.name for file in manifest.files)
        for file, sha256 in zip(manifest.files, found, strict=True):
            if sha256 != file.sha256:
                raise DataError(f"{dataset_dir} is damaged: {file.name} does not have the hash in the manifest")
            if on_bytes:
                on_bytes(file.bytes)
    return manifest


class TokenSplit(MappedNumbers):
    """The tokens of one split as one stream over all its shards. `read` and `fill` read them from disk."""

    def __init__(self, dataset_dir: Path, split: SplitName) -> None:
        """Memory-maps the shards. Raises DataError if one is missing or its size differs from the manifest."""
        manifest = read_dataset_manifest(dataset_dir)
        described = manifest.splits[split]
        self.num_tokens = described.num_tokens
        self.bytes_per_token = described.num_bytes / max(1, described.num_tokens)
        """UTF-8 bytes of text per token. Ends of text count as tokens."""
        shards = [file for file in described.files if file.name.endswith(".ds")]
        lengths = [shard_tokens(file, manifest.token_bytes) for file in shards]
        if sum(lengths) != described.num_tokens or any(file.bytes % manifest.token_bytes for file in shards):
            raise DataError(f"{dataset_dir} is damaged: its {split} files do not hold {described.num_tokens} tokens")
        for file in shards:
            _require_size(dataset_dir, file)
        self._opened = (dataset_dir, split)
        super().__init__(
            [
                mapped(dataset_dir / file.name, f"<u{manifest.token_bytes}", count=length)
                for file, length in zip(shards, lengths, strict=True)
            ]
        )

    def __reduce__(self) -> tuple[type["TokenSplit"], tuple[Path, SplitName]]:
        """A pickle holds the path, not the tokens: whoever loads it opens the dataset again."""
        return TokenSplit, self._opened


def shard_tokens(file: DatasetFile, token_bytes: int) -> int:
    """The number of tokens of a shard that belong to its split."""
    stored = file.bytes // token_bytes
    return stored if file.num_tokens is None else min(stored, file.num_tokens)


class TrainingSamples(EndlessSamples):
    """The train split as an endless sequence of samples. A sample has T + 1 tokens: T inputs and T shifted targets.

    `WindowOrder` says in which order an epoch uses the windows of the stream.
    """

    def __init__(self, dataset_dir: Path, sequence_length: int, seed: int) -> None:
        """Opens the train split. Raises DataError if it is shorter than one sample."""
        self._split = TokenSplit(dataset_dir, "train")
        self._length = sequence_length
        require_tokens(dataset_dir, "train", self._split.num_tokens, sequence_length)
        self.num_windows = self._split.num_tokens // sequence_length
        """Samples per epoch."""
        self._order = WindowOrder([self._split.num_tokens], sequence_length, seed)
        self._blocks = Blocks(self.starts)

    def epochs(self, num_samples: int) -> float:
        """How many passes over the data `num_samples` samples make."""
        return num_samples / self.num_windows

    def starts(self, first_index: int, count: int) -> Int64Array:
        """The positions in the stream where the samples start: (count,) int64, each in [0, tokens of the split)."""
        return self._order.starts(np.zeros(count, np.int64), np.arange(first_index, first_index + count))

    def batch(self, first_index: int, count: int) -> Int64Array:
        """Samples `first_index` to `first_index + count`: (count, T + 1) int64."""
        tokens_BT = np.empty((count, self._length + 1), np.int64)
        for row, start in zip(tokens_BT, self._blocks.read(first_index, count).tolist(), strict=True):
            self._split.fill(row, start)
        return tokens_BT


class EvaluationWindows:
    """A split as consecutive windows of T + 1 tokens that overlap by one token, so that no token is a target twice.

    The rest of fewer than T tokens at the end is left out, so all windows have the same weight. With `max_sequences`,
    windows are spread evenly over the split, because neighbouring documents are often similar.
    """

    def __init__(
        self, dataset_dir: Path, split: SplitName, sequence_length: int, max_sequences: int | None = None
    ) -> None:
        """Opens the split. Raises DataError if it is shorter than one window."""
        self._split = TokenSplit(dataset_dir, split)
        self._length = sequence_length
        require_tokens(dataset_dir, split, self._split.num_tokens, sequence_length)
        total = (self._split.num_tokens - 1) // sequence_length
        count = total if max_sequences is None else min(max_sequences, total)
        self._windows = np.arange(count) * total // count
        self.bytes_per_token = self._split.bytes_per_token

    def __len__(self) -> int:
        return len(self._windows)

    def batch(self, start: int, stop: int) -> Int64Array:
        """Windows `start` to `stop`, in order: (stop - start, T + 1) int64, with fewer rows at the end."""
        windows = self._windows[start:stop].tolist()
        tokens_BT = np.empty((len(windows), self._length + 1), np.int64)
        for row, window in zip(tokens_BT, windows, strict=True):
            self._split.fill(row, window * self._length)
        return tokens_BT

    def __getitem__(self, place: int) -> Int64Array:
        """One window: (T + 1,) int64. Raises IndexError beyond either end."""
        return self._split.read(int(self._windows[place]) * self._length, self._length + 1)


def _require_size(dataset_dir: Path, file: DatasetFile) -> None:
    path = dataset_dir / file.name
    if not path.is_file():
        raise DataError(f"{dataset_dir} is damaged: {file.name} is missing")
    try:
        check_inside(dataset_dir, file.name)
    except DocumentError as error:
        raise DataError(f"{dataset_dir} is damaged: {error}") from error
    if (size := path.stat().st_size) != file.bytes:
        raise DataError(f"{dataset_dir} is damaged: {file.name} has {size} bytes, not {file.bytes} as in the manifest")


def require_tokens(dataset_dir: Path, split: SplitName, num_tokens: int, sequence_length: int) -> None:
    """Raises DataError if a split is shorter than one sample."""
    if num_tokens <= sequence_length:
        raise DataError(
            f"data.source: the {split} split of {dataset_dir} has {counted(num_tokens, 'token')}, but one sample of"
            f" {sequence_length} needs {sequence_length + 1}; use more text, a shorter sequence"
            f"{', or a larger data.validation_fraction' if split == 'validation' else ''}"
        )
