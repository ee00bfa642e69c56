"""A dataset: its manifest, and its memory-mapped token shards as batches.

The position in it is one integer.

A training sample depends only on the seed and its global index. It does not depend on the number of ranks, on the
micro-batch, or on where a run was stopped. Shapes: B batch, T sequence.

A mixture of datasets is a directory with a manifest too, but without tokens: its manifest names the datasets
(stages/data/mixture_dataset.py writes it, stages/data/samples.py opens it for training).
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt

from model.strict import Strict
from stages.checkpoint.files import OnBytes, hash_file, hash_files
from stages.checkpoint.sealed import DocumentError, PlainPath, Sealed, check_inside, read_sealed, seal
from stages.checkpoint.text_facts import TextFacts
from stages.counted import counted
from stages.data.bad_records import SkippedRecords
from stages.data.corpus import SPLITS, DataError, DataSpec, SourceName, SplitName
from stages.data.remote_reading import RemoteReading, remote_reading
from stages.data.sample_order import Blocks, Int64Array, WindowOrder
from stages.data.sample_range import EndlessSamples
from stages.remote_shards.range_hashes import HASH_BYTES, RANGE_BYTES, RANGES_ENDING, write_range_hashes
from stages.remote_shards.remote_numbers import RemoteNumbers, RemoteShard
from stages.stage_dir import MANIFEST_NAME, TOKENIZER_NAME
from stages.token_files.mapped import MappedNumbers, mapped

FORMAT_VERSION = 1
LAYOUT_VERSION = 1
"""Version of the token files' layout. It is part of a dataset's identity; the manifest's FORMAT_VERSION is not."""
HASHED_BYTES = 20_000_000_000
"""`check_dataset` hashes datasets up to this size completely."""

_URL_AS_PATH = re.compile(r"[a-z][a-z0-9+]+:/")
"""A path that was made of a URL has lost a slash."""

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
    """Files in the order of the stream: each shard, followed by its index (document ends: uint64, in tokens) and the
    hashes of its ranges (sha256)."""


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

    range_bytes: PositiveInt = RANGE_BYTES
    """Bytes of a shard that each hash in its `.ds.ranges` is of; the last range of a shard may be shorter."""

    skipped: SkippedRecords = SkippedRecords()
    """The bad records that `data.on_bad_record: skip` left out."""

    sources: tuple[MixtureEntry, ...] = ()
    """The datasets that this one is a mixture of; empty for an ordinary dataset. The splits of a mixture have the sums
    of its sources', and no files."""

    fingerprint: str
    """sha256 over the tokenizer and all shards and indices, in order. Independent of paths, times and the number of
    workers. That of
    a mixture is over the names, fingerprints and base weights of its sources."""

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
    hashes = [
        [_identity(file) for file in splits[split].files if not file.name.endswith(RANGES_ENDING)] for split in SPLITS
    ]
    return hashlib.sha256(json.dumps([LAYOUT_VERSION, tokenizer_sha256, hashes]).encode()).hexdigest()


def mixture_fingerprint(sources: Sequence[MixtureEntry]) -> str:
    """The fingerprint of a mixture: a sha256 over its sources' names, fingerprints and base weights."""
    parts = [[source.name, source.fingerprint, source.weight] for source in sources]
    return hashlib.sha256(json.dumps([LAYOUT_VERSION, "mixture", parts]).encode()).hexdigest()


def _identity(file: DatasetFile) -> str | tuple[str, int]:
    return file.sha256 if file.num_tokens is None else (file.sha256, file.num_tokens)


def read_dataset_manifest(dataset_dir: Path) -> DatasetManifest:
    """The manifest of a dataset. Raises DataError if there is none or it cannot be read."""
    path = dataset_dir / MANIFEST_NAME
    if _URL_AS_PATH.match(str(dataset_dir)) and not dataset_dir.exists():
        raise DataError(
            f"{str(dataset_dir).replace(':/', '://', 1)} is a URL, and a directory is needed here; `growctl data show"
            " URL` opens a dataset at a URL and names its directory"
        )
    if not path.is_file():
        raise DataError(f"{dataset_dir} is not a dataset: it has no {MANIFEST_NAME}; `growctl prepare` makes one")
    try:
        return read_sealed(path, DatasetManifest, FORMAT_VERSION)
    except DocumentError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def data_parts(dataset_dir: Path) -> list[tuple[str | None, Path]]:
    """The directories that hold a dataset's tokens: those of a mixture's sources, by name, or else its own."""
    sources = read_dataset_manifest(dataset_dir).sources
    return [(source.name, source.dataset(dataset_dir)) for source in sources] or [(None, dataset_dir)]


def dataset_manifest_bytes(manifest: DatasetManifest) -> bytes:
    """The content of manifest.json: `manifest` with its seal."""
    return seal(manifest.model_copy(update={"format_version": FORMAT_VERSION})).model_dump_json(indent=1).encode()


def check_dataset(dataset_dir: Path, on_progress: Callable[[str, float | None], None] | None = None) -> DatasetManifest:
    """Verifies a dataset, with the hashes of its files if it is no larger than `HASHED_BYTES`. Returns its manifest.

    Calls `on_progress` with a description of the work and the fraction done. Raises DataError as `verify_dataset` does.
    """
    found = _whole_manifests(dataset_dir)
    total = sum(file.bytes for directory, manifest in found for file in files_here(directory, manifest))
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

    The files of a mixture are those of its sources. The tokens of a remote dataset are checked when they are read.
    Raises DataError that names the first file that is missing, differs, or is a link out of the directory, or the first
    source that is not the dataset of the mixture.
    """
    manifests = _whole_manifests(dataset_dir)
    for directory, manifest in manifests:
        for file in files_here(directory, manifest):
            _require_size(directory, file)
        require_tokenizer(directory, manifest)
        sources = manifest.sources
        computed = (
            mixture_fingerprint(sources) if sources else dataset_fingerprint(manifest.tokenizer_sha256, manifest.splits)
        )
        if computed != manifest.fingerprint:
            raise DataError(f"{directory} is damaged: the fingerprint in its manifest does not match its files")
    for directory, manifest in manifests if hashes else []:
        files = files_here(directory, manifest)
        found = hash_files(directory / file.name for file in files)
        for file, sha256 in zip(files, found, strict=True):
            if sha256 != file.sha256:
                raise DataError(f"{directory} is damaged: {file.name} does not have the hash in the manifest")
            if on_bytes:
                on_bytes(file.bytes)
    return manifests[0][1]


def _whole_manifests(dataset_dir: Path) -> list[tuple[Path, DatasetManifest]]:
    """A dataset with its manifest and, after a mixture, each of its sources with that of its own.

    Raises DataError if one cannot be read, or if a source is not the dataset that the mixture was made of.
    """
    manifest = read_dataset_manifest(dataset_dir)
    found = [(dataset_dir, manifest)]
    for source in manifest.sources:
        directory, which = source.dataset(dataset_dir), f"{dataset_dir}: its source {source.name!r}"
        try:
            found.append((directory, read_dataset_manifest(directory)))
        except DataError as error:
            raise DataError(f"{which} cannot be used: {error}") from error
        if (now := found[-1][1].fingerprint) != source.fingerprint:
            raise DataError(
                f"{which} is another dataset than the mixture was made of: {directory} has the fingerprint"
                f" {now[:12]}..., not {source.fingerprint[:12]}...; restore it, or prepare the mixture again"
            )
    return found


def require_tokenizer(dataset_dir: Path, manifest: DatasetManifest) -> None:
    """Raises DataError if a dataset's tokenizer is not the one in its manifest."""
    tokenizer = dataset_dir / TOKENIZER_NAME
    if not tokenizer.is_file() or hash_file(tokenizer) != manifest.tokenizer_sha256:
        raise DataError(f"{dataset_dir} is damaged: its {TOKENIZER_NAME} is missing or changed")


def require_one_tokenizer(datasets: Mapping[str, Path]) -> None:
    """Raises DataError if the sources of a mixture, each a dataset by its name, do not all have the same tokenizer."""
    manifests = {name: read_dataset_manifest(dataset_dir) for name, dataset_dir in datasets.items()}
    (first, expected), *others = manifests.items()
    for name, manifest in others:
        if manifest.tokenizer_sha256 != expected.tokenizer_sha256:
            raise DataError(
                f"data.mixture: {name!r} ({datasets[name]}) has another tokenizer than {first!r} ({datasets[first]});"
                " the sources of a mixture share one: prepare them with the same data.tokenizer"
            )


def range_hashes_of(dataset_dir: Path, shard: str, range_bytes: int = RANGE_BYTES) -> DatasetFile:
    """Writes the hashes of a shard's ranges into a dataset, so that they can be checked one by one."""
    written = write_range_hashes(dataset_dir / shard, range_bytes)
    return DatasetFile(name=shard + RANGES_ENDING, bytes=written.bytes, sha256=written.sha256)


def files_here(dataset_dir: Path, manifest: DatasetManifest) -> list[DatasetFile]:
    """The files that a dataset has in its directory: all, or of a remote one the hashes of its ranges."""
    if remote_reading(dataset_dir) is None:
        return manifest.files
    return [file for file in manifest.files if file.name.endswith(RANGES_ENDING)]


class TokenSplit:
    """The tokens of one split as one stream over all its shards, read from disk or from a URL on use."""

    def __init__(self, dataset_dir: Path, split: SplitName) -> None:
        """Memory-maps the shards, or the hashes of remote ones.

        Raises DataError if one is missing or its size differs from the manifest.
        """
        manifest = read_dataset_manifest(dataset_dir)
        described = manifest.splits[split]
        self.num_tokens = described.num_tokens
        self.bytes_per_token = described.num_bytes / max(1, described.num_tokens)
        """UTF-8 bytes of text per token. Ends of text count as tokens."""
        shards = [file for file in described.files if file.name.endswith(".ds")]
        lengths = [shard_tokens(file, manifest.token_bytes) for file in shards]
        if sum(lengths) != described.num_tokens or any(file.bytes % manifest.token_bytes for file in shards):
            raise DataError(f"{dataset_dir} is damaged: its {split} files do not hold {described.num_tokens} tokens")
        self._opened = (dataset_dir, split)
        reading = remote_reading(dataset_dir)
        self._remote = None if reading is None else _remote_numbers(dataset_dir, reading, manifest, shards)
        numbers = _mapped_numbers(dataset_dir, manifest, shards) if self._remote is None else self._remote
        self.fill = numbers.fill
        """Fills an array from a position on; the stream goes on at its start."""
        self.read = numbers.read
        """Reads (start, length): (length,) int64. Raises IndexError beyond either end."""

    @property
    def is_remote(self) -> bool:
        """Whether the tokens lie at a URL."""
        return self._remote is not None

    def expect(self, start: int, length: int) -> None:
        """Begins to fetch `length` tokens from `start` on, if they are remote and not on this machine."""
        if self._remote is not None:
            self._remote.expect(start, length)

    def __reduce__(self) -> tuple[type["TokenSplit"], tuple[Path, SplitName]]:
        """A pickle holds the path, not the tokens: whoever loads it opens the dataset again."""
        return TokenSplit, self._opened


def _mapped_numbers(dataset_dir: Path, manifest: DatasetManifest, shards: Sequence[DatasetFile]) -> MappedNumbers:
    for file in shards:
        _require_size(dataset_dir, file)
    return MappedNumbers(
        [
            mapped(dataset_dir / file.name, f"<u{manifest.token_bytes}", count=shard_tokens(file, manifest.token_bytes))
            for file in shards
        ]
    )


def _remote_numbers(
    dataset_dir: Path, reading: RemoteReading, manifest: DatasetManifest, shards: Sequence[DatasetFile]
) -> RemoteNumbers:
    found = []
    for file in shards:
        hashes = dataset_dir / f"{file.name}{RANGES_ENDING}"
        needed = -(-file.bytes // manifest.range_bytes) * HASH_BYTES
        if not hashes.is_file() or hashes.stat().st_size != needed:
            raise DataError(
                f"{dataset_dir} is damaged: {file.name}{RANGES_ENDING} does not hold {needed:,} bytes; remove"
                f" {dataset_dir} and run the same command again"
            )
        if length := shard_tokens(file, manifest.token_bytes):
            found.append(RemoteShard(file.name, file.bytes, length, hashes.read_bytes()))
    fetch, dtype = reading.files().fetch, f"<u{manifest.token_bytes}"
    return RemoteNumbers(found, dtype, manifest.range_bytes, fetch, reading.cache())


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
        self._expected = Blocks(self.starts)

    def epochs(self, num_samples: int) -> float:
        """How many passes over the data `num_samples` samples make."""
        return num_samples / self.num_windows

    def starts(self, first_index: int, count: int) -> Int64Array:
        """The positions in the stream where the samples start: (count,) int64, each in [0, tokens of the split)."""
        return self._order.starts(np.zeros(count, np.int64), np.arange(first_index, first_index + count))

    def pieces(self, index: int) -> list[tuple[int, int]]:
        """Where each part of a sample starts in the stream, and its tokens: one part."""
        return [(int(self.starts(index, 1)[0]), self._length + 1)]

    def batch(self, first_index: int, count: int) -> Int64Array:
        """Samples `first_index` to `first_index + count`: (count, T + 1) int64."""
        tokens_BT = np.empty((count, self._length + 1), np.int64)
        for row, start in zip(tokens_BT, self._blocks.read(first_index, count).tolist(), strict=True):
            self._split.fill(row, start)
        return tokens_BT

    def expect(self, first_index: int, count: int) -> None:
        if self._split.is_remote:
            for start in self._expected.read(first_index, count).tolist():
                self._split.expect(start, self._length + 1)


class WindowsOfSource(NamedTuple):
    """The evaluation windows of one source of a mixture. An ordinary dataset is its own only source."""

    name: str | None
    """None for an ordinary dataset."""

    weight: float
    """Its share of the loss of the mixture: base weights, scaled to a sum of 1."""

    first: int
    """The place of its first window among those of all sources."""

    num_windows: int
    bytes_per_token: float
    """UTF-8 bytes of text per token of its whole split."""


class EvaluationWindows:
    """A split as consecutive windows of T + 1 tokens that overlap by one token, so that no token is a target twice.

    The rest of fewer than T tokens at the end is left out, so all windows have the same weight. With `max_sequences`,
    windows are spread evenly over the split, because neighbouring documents are often similar.

    The windows of a mixture are those of its sources, one source after another. `max_sequences` are shared out in
    proportion to the base weights: at least one for each source, and no more than it has.
    """

    def __init__(
        self, dataset_dir: Path, split: SplitName, sequence_length: int, max_sequences: int | None = None
    ) -> None:
        """Opens the split. Raises DataError if it, or that of a source, is shorter than one window."""
        entries, parts = read_dataset_manifest(dataset_dir).sources, data_parts(dataset_dir)
        total_weight = sum(entry.weight for entry in entries)
        weights = [entry.weight / total_weight for entry in entries] if entries else [1.0]
        self._length = sequence_length
        self._splits = [TokenSplit(directory, split) for _, directory in parts]
        for (_, directory), tokens in zip(parts, self._splits, strict=True):
            require_tokens(directory, split, tokens.num_tokens, sequence_length)
        totals = [(tokens.num_tokens - 1) // sequence_length for tokens in self._splits]
        counts = totals if max_sequences is None else _shared_out(max_sequences, weights, totals)
        self._windows = np.concatenate(
            [np.arange(count) * total // count for count, total in zip(counts, totals, strict=True)]
        )
        self._sources = np.repeat(np.arange(len(counts)), counts)
        firsts = [sum(counts[:number]) for number in range(len(counts))]
        sizes = [tokens.bytes_per_token for tokens in self._splits]
        names = [name for name, _ in parts]
        self.sources = tuple(map(WindowsOfSource, names, weights, firsts, counts, sizes))
        """The windows by source."""

    def __len__(self) -> int:
        return len(self._windows)

    def source(self, place: int) -> WindowsOfSource:
        """The source of one window. Raises IndexError beyond either end."""
        return self.sources[self._sources[place]]

    def batches(self, batch_size: int) -> list[tuple[int, int, int]]:
        """(number of the source, start, stop) of batches that cover all windows, each of one source alone."""
        return [
            (number, start, min(start + batch_size, source.first + source.num_windows))
            for number, source in enumerate(self.sources)
            for start in range(source.first, source.first + source.num_windows, batch_size)
        ]

    def batch(self, start: int, stop: int) -> Int64Array:
        """Windows `start` to `stop`, in order: (stop - start, T + 1) int64, with fewer rows at the end."""
        windows, sources = self._windows[start:stop].tolist(), self._sources[start:stop].tolist()
        tokens_BT = np.empty((len(windows), self._length + 1), np.int64)
        for row, window, source in zip(tokens_BT, windows, sources, strict=True):
            self._splits[source].fill(row, window * self._length)
        return tokens_BT

    def expect(self, start: int, stop: int) -> None:
        """Begins to fetch windows `start` to `stop`, if they are remote and not on this machine."""
        windows, sources = self._windows[start:stop].tolist(), self._sources[start:stop].tolist()
        for window, source in zip(windows, sources, strict=True):
            self._splits[source].expect(window * self._length, self._length + 1)

    def __getitem__(self, place: int) -> Int64Array:
        """One window: (T + 1,) int64. Raises IndexError beyond either end."""
        return self._splits[self._sources[place]].read(int(self._windows[place]) * self._length, self._length + 1)


def longest_window(dataset_dir: Path, split: SplitName) -> int:
    """The most tokens that a window of a split can have; of a mixture, one of any source."""
    manifests = (read_dataset_manifest(directory) for _, directory in data_parts(dataset_dir))
    return max(1, min(manifest.splits[split].num_tokens for manifest in manifests) - 1)


def _shared_out(number: int, weights: Sequence[float], most: Sequence[int]) -> list[int]:
    """`number` windows shared out in proportion to `weights`, one at a time to the source that is furthest behind.

    Each source gets at least one, and no more than `most`.
    """
    counts = [1] * len(weights)
    for _ in range(min(number, sum(most)) - len(weights)):
        open_sources = (i for i in range(len(weights)) if counts[i] < most[i])
        counts[max(open_sources, key=lambda i: weights[i] / (2 * counts[i] + 1))] += 1
    return counts


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
