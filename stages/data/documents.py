"""Where the documents of a dataset end, and what follows for attention that stays within documents.

Index files hold the ends and nothing else; all is read in bounded memory. As in model/flops.py, the causal mask is not
subtracted: a token counts all tokens of its document in its sequence, those after it too.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from stages.counted import counted
from stages.data.dataset import DatasetFile, DatasetPart, read_dataset_manifest, require_files, shard_tokens
from stages.data.errors import DataError
from stages.data.order import UInt64Array
from stages.data.remote import fetch_if_remote
from stages.data.spec import SplitName
from stages.data.tokens import Int64Array, mapped

READ_AT_ONCE = 1 << 20
"""Documents whose ends are in memory at a time."""


def document_lengths(dataset_dir: Path, split: SplitName) -> Iterator[Int64Array]:
    """The lengths of all documents of a split in tokens, in order, in parts of at most READ_AT_ONCE documents.

    The end of text after a document belongs to it. Raises DataError if an index file is missing, or has not what the
    manifest says.
    """
    manifest = read_dataset_manifest(dataset_dir)
    described = manifest.splits[split]
    indices = {file.name: file for file in described.files}
    shards: list[tuple[int, UInt64Array]] = []
    tokens = last = 0
    for shard in described.shards:
        index = indices.get(f"{shard.name}.index")  # none for an imported shard in which no document ends
        ends = _mapped_ends(dataset_dir, index) if index else np.empty(0, np.uint64)
        last = tokens + int(ends[-1]) if len(ends) else last
        shards.append((tokens, ends))
        tokens += shard_tokens(shard, manifest.token_bytes)
    if (sum(len(ends) for _, ends in shards), last) != (described.num_documents, described.num_tokens):
        raise DataError(f"{dataset_dir} is damaged: the index files of {split} do not fit its manifest")
    last = 0
    for first_token, ends in shards:
        for start in range(0, len(ends), READ_AT_ONCE):
            part = first_token + ends[start : start + READ_AT_ONCE].astype(np.int64)
            yield np.diff(part, prepend=last)
            last = int(part[-1])


def _mapped_ends(dataset_dir: Path, file: DatasetFile) -> UInt64Array:
    fetch_if_remote(dataset_dir, file)
    require_files(dataset_dir, [file], hashes=False)
    return mapped(dataset_dir / file.name, "<u8")


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


def misplaced_ends(parts: Iterable[DatasetPart], end_id: int | None = None) -> str | None:
    """Why a model to which the token `end_id` ends a document cannot attend within those of `parts`; None if it can.

    By default, `end_id` is the end of text of the first dataset.
    """
    for part in parts:
        manifest, splits = part.manifest, part.manifest.splits.values()
        end = f"{manifest.spec.end_of_text} (id {manifest.end_of_text_id})"
        end_id = manifest.end_of_text_id if end_id is None else end_id
        if manifest.end_of_text_id != end_id:
            return f"the documents of {part.directory} end in {end}, not in the end of text with id {end_id}"
        if num_unended := sum(split.num_unended_documents for split in splits):
            num_documents = counted(sum(split.num_documents for split in splits), "document")
            return f"{num_unended:,} of the {num_documents} of {part.directory} do not end in {end}"
        if num_inner := sum(split.num_inner_ends for split in splits):
            return f"{part.directory} has {end} inside its documents too, {counted(num_inner, 'time')}"
    return None
