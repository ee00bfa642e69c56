"""Where the documents of a dataset end, and what follows for attention that stays within documents.

Index files hold the ends and nothing else; all is read in bounded memory. As in model/flops.py, the causal mask is not
subtracted: a token counts all tokens of its document in its sequence, those after it too.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stages.counted import counted
from stages.data.dataset import DatasetFile, read_dataset_manifest, shard_tokens
from stages.data.errors import DataError
from stages.data.order import UInt64Array
from stages.data.remote import fetch_if_remote
from stages.data.spec import SplitName
from stages.data.tokens import Int64Array

READ_AT_ONCE = 1 << 20
"""Documents whose ends are in memory at a time."""
_END_BYTES = 8


class _Shard(NamedTuple):
    """A shard's documents, and where it lies in the stream of its split."""

    name: str
    ends: UInt64Array
    """The documents' ends in tokens from the start of the shard: memory-mapped."""
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
        indices = {file.name: file for file in described.files if file.name.endswith(".index")}
        self._directory, self._split = dataset_dir, split
        self._shards: list[_Shard] = []
        tokens = documents = before = 0
        for shard in described.shards:
            name = f"{shard.name}.index"  # none for an imported shard in which no document ends
            ends = _mapped_ends(dataset_dir, indices[name]) if name in indices else np.empty(0, np.uint64)
            num_tokens, last = shard_tokens(shard, manifest.token_bytes), int(ends[-1]) if len(ends) else 0
            self._shards.append(_Shard(name, ends, tokens, documents, before))
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
                    number = start + int(wrong[0])
                    raise self._damaged(shard.name, f"document {number} of it does not end after it begins")
                before = int(part[-1])
                yield lengths

    def document_at(self, position: int) -> tuple[int, int, int]:
        """The document that holds the token at `position` of the stream: its number, counted from 0, and the
        positions where it starts and ends. Raises IndexError beyond the split."""
        if not 0 <= position < self._num_tokens:
            raise IndexError(f"token {position} is outside the {self._split} split")
        shard = self._shards[bisect_right(self._shards, position, key=lambda shard: shard.first_token) - 1]
        number = int(np.searchsorted(shard.ends, np.uint64(position - shard.first_token), side="right"))
        start = shard.first_token + int(shard.ends[number - 1]) if number else shard.before
        if number == len(shard.ends):  # it ends in a later shard
            later = (other for other in self._shards if other.first_token > position and len(other.ends))
            shard, number = next(later), 0
        return shard.first_document + number, start, shard.first_token + int(shard.ends[number])

    def _damaged(self, name: str, what: str) -> DataError:
        return DataError(f"{self._directory} is damaged: {name}: {what}")


def _mapped_ends(dataset_dir: Path, file: DatasetFile) -> UInt64Array:
    path = dataset_dir / file.name
    fetch_if_remote(dataset_dir, file.name, file.sha256)
    size = path.stat().st_size if path.is_file() else 0
    if not size or size % _END_BYTES or size != file.bytes:
        raise DataError(f"{dataset_dir} is damaged: {file.name} has {size} bytes, not {file.bytes} as in the manifest")
    return np.memmap(path, np.dtype("<u8"), mode="r")


def mean_attended_tokens(lengths: Iterable[Int64Array], sequence_length: int) -> float:
    """The mean over all tokens of all windows of T = `sequence_length` tokens, wherever in the stream a window begins.

    `lengths` come in parts; together they are the stream, which has T tokens or more. Of N windows, T - d hold both of
    two tokens at the distance d < T, and a document of l tokens has l - d such pairs. Each pair counts for both of its
    tokens, and each token for itself, so a document adds l + 2 sum of (l - d) (T - d) / T over 0 < d < m = min(l, T).
    In closed form the sum is (m - 1) (l - m (l + T) / 2T + m (2m - 1) / 6T). The result is exact to rounding: an epoch
    has windows from one offset only, drawn at random, so an epoch of a small text may differ from this mean.
    """
    total, num_tokens = [], 0
    for part in lengths:
        length, t = part.astype(np.float64), float(sequence_length)
        m = np.minimum(length, t)
        pairs = (m - 1) * (length - m * (length + t) / (2 * t) + m * (2 * m - 1) / (6 * t))
        total.append(float(np.sum(length + 2 * pairs)))
        num_tokens += int(part.sum())
    return math.fsum(total) / max(1, num_tokens)


def misplaced_ends(datasets: Iterable[Path], end_id: int | None = None) -> str | None:
    """Why a model to which the token `end_id` ends a document cannot attend within those of `datasets`; None if it can.

    By default, `end_id` is the end of text of the first dataset. Raises DataError if a manifest cannot be read.
    """
    for path in datasets:
        manifest = read_dataset_manifest(path)
        end, splits = f"{manifest.spec.end_of_text} (id {manifest.end_of_text_id})", manifest.splits.values()
        end_id = manifest.end_of_text_id if end_id is None else end_id
        num_unended, num_inner = (sum(s.num_unended_documents for s in splits), sum(s.num_inner_ends for s in splits))
        if manifest.end_of_text_id != end_id:
            return f"the documents of {path} end in {end}, not in the end of text with id {end_id}"
        if num_unended:
            num_documents = sum(split.num_documents for split in splits)
            return f"{num_unended:,} of the {counted(num_documents, 'document')} of {path} do not end in {end}"
        if num_inner:
            return f"{path} has {end} inside its documents too, {counted(num_inner, 'time')}"
    return None


def weighted_datasets(dataset_dir: Path) -> dict[Path, float]:
    """The datasets that samples of `dataset_dir` come from, with their weights: a mixture's sources, or itself."""
    sources = read_dataset_manifest(dataset_dir).sources
    return {source.dataset(dataset_dir): source.weight for source in sources} or {dataset_dir: 1.0}
