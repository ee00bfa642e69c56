"""The tokens of one split of a dataset as one stream, memory-mapped or fetched from a URL."""

from collections.abc import Sequence
from pathlib import Path

from stages.counted import counted
from stages.data.corpus import DataError, SplitName
from stages.data.dataset import DatasetFile, DatasetManifest, read_dataset_manifest, require_size, shard_tokens
from stages.data.remote_reading import RemoteReading, remote_reading
from stages.remote_shards.range_hashes import HASH_BYTES, RANGES_ENDING
from stages.remote_shards.remote_numbers import RemoteNumbers, RemoteShard
from stages.token_files.mapped import MappedNumbers, mapped


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
        self.fill_pieces = numbers.fill_pieces
        """Fills an array with pieces, each (start, length), one after another."""
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
        require_size(dataset_dir, file)
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


def require_tokens(
    dataset_dir: Path, split: SplitName, num_tokens: int, sequence_length: int, source: str | None = None
) -> None:
    """Raises DataError if a split is shorter than one sample. `source` is its name in a mixture."""
    if num_tokens <= sequence_length:
        which = f"data.mixture: {source!r}, " if source else "data.source: "
        raise DataError(
            f"{which}the {split} split of {dataset_dir} has {counted(num_tokens, 'token')}, but one sample of"
            f" {sequence_length} needs {sequence_length + 1}; use more text, a shorter sequence"
            f"{', or a larger data.validation_fraction' if split == 'validation' else ''}"
        )
