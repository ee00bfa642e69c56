"""Reads where the documents of a split end, in bounded memory: a dataset's index files hold nothing else."""

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stages.counted import counted
from stages.data.corpus import DataError, SplitName
from stages.data.dataset import DatasetFile, read_dataset_manifest, shard_tokens
from stages.data.remote_reading import fetch_if_remote
from stages.data.sample_order import Int64Array, UInt64Array

READ_AT_ONCE = 1 << 20
"""Documents whose ends are in memory at a time."""

_END_BYTES = 8


class _Shard(NamedTuple):
    """A shard's documents, and where it lies in the stream of its split."""

    name: str
    ends: UInt64Array
    """The documents' ends in tokens from the start of the shard: memory-mapped."""
    num_tokens: int
    first_token: int
    first_document: int
    before: int
    """Where the last document ends that ends in an earlier shard, in tokens of the split. In an imported dataset, a
    document may begin there and end here."""


class DocumentEnds:
    """The ends of a split's documents, in tokens. The end of text after a document belongs to it."""

    def __init__(self, dataset_dir: Path, split: SplitName) -> None:
        """Memory-maps the index files. Raises DataError if one is missing, or lacks what the manifest says."""
        manifest = read_dataset_manifest(dataset_dir)
        described = manifest.splits[split]
        self._directory, self._split = dataset_dir, split
        self._shards: list[_Shard] = []
        tokens = documents = before = 0
        for shard, index in _pairs(described.files):
            ends = _mapped(dataset_dir, index) if index else np.empty(0, np.uint64)
            num_tokens, last = shard_tokens(shard, manifest.token_bytes), int(ends[-1]) if len(ends) else 0
            name = f"{shard.name}.index"
            self._shards.append(_Shard(name, ends, num_tokens, tokens, documents, before))
            before = tokens + last if last else before
            tokens, documents = tokens + num_tokens, documents + len(ends)
            if last > num_tokens or (tokens == described.num_tokens and last != num_tokens):
                raise self._damaged(name, f"ends at token {last}, but its shard has {num_tokens}")
        if documents != described.num_documents:
            raise DataError(
                f"{dataset_dir} is damaged: the index files of {split} list {counted(documents, 'document')}, not "
                f"{described.num_documents:,} as in the manifest"
            )
        self.num_documents, self._num_tokens = documents, tokens

    def lengths(self) -> Iterator[Int64Array]:
        """The lengths of all documents in tokens, in order, in parts of at most READ_AT_ONCE documents.

        Raises DataError if the ends of a shard do not rise.
        """
        for shard in self._shards:
            before = shard.before - shard.first_token
            for start in range(0, len(shard.ends), READ_AT_ONCE):
                part = shard.ends[start : start + READ_AT_ONCE].astype(np.int64)
                lengths = np.diff(part, prepend=before)
                if len(wrong := np.flatnonzero(lengths <= 0)):
                    raise self._damaged(
                        shard.name, f"document {start + int(wrong[0])} of it does not end after it begins"
                    )
                before = int(part[-1])
                yield lengths

    def document_at(self, position: int) -> tuple[int, int, int]:
        """The document that holds the token at `position` of the stream: its number, counted from 0, and the
        positions where it starts and ends. Raises IndexError beyond the split."""
        if not 0 <= position < self._num_tokens:
            raise IndexError(f"token {position} is outside the {self._split} split")
        shard = self._shards[bisect_right(self._shards, position, key=lambda shard: shard.first_token) - 1]
        inside = position - shard.first_token
        number = int(np.searchsorted(shard.ends, np.uint64(inside), side="right"))
        start = shard.first_token + int(shard.ends[number - 1]) if number else shard.before
        if number == len(shard.ends):  # it ends in a later shard
            later = (other for other in self._shards if other.first_token > position and len(other.ends))
            shard, number = next(later), 0
        return shard.first_document + number, start, shard.first_token + int(shard.ends[number])

    def _damaged(self, name: str, what: str) -> DataError:
        return DataError(f"{self._directory} is damaged: {name}: {what}")


def _pairs(files: tuple[DatasetFile, ...]) -> Iterator[tuple[DatasetFile, DatasetFile | None]]:
    """Each shard with its index; None for an imported shard in which no document ends."""
    indexes = {file.name: file for file in files if file.name.endswith(".ds.index")}
    for shard in files:
        if shard.name.endswith(".ds"):
            yield shard, indexes.get(f"{shard.name}.index")


def _mapped(dataset_dir: Path, file: DatasetFile) -> UInt64Array:
    path = dataset_dir / file.name
    fetch_if_remote(dataset_dir, file.name, file.sha256)
    size = path.stat().st_size if path.is_file() else 0
    if not size or size % _END_BYTES or size != file.bytes:
        raise DataError(f"{dataset_dir} is damaged: {file.name} has {size} bytes, not {file.bytes} as in the manifest")
    return np.memmap(path, np.dtype("<u8"), mode="r")
