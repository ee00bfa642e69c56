"""How many data tokens a token attends to, on average, if attention stays within documents.

As in model/flops.py, the causal mask is not subtracted: a token counts all tokens of its document in its sequence,
those after it too.
"""

import math
from collections.abc import Iterable, Mapping
from operator import mul
from pathlib import Path

import numpy as np

from stages.counted import counted
from stages.data.dataset import read_dataset_manifest
from stages.data.document_ends import DocumentEnds
from stages.data.packed_split import packing_facts
from stages.data.sample_order import Int64Array
from stages.spec import Packing


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


def attended_tokens(datasets: Mapping[Path, float], sequence_length: int, packing: Packing = "concatenate") -> float:
    """The mean over training samples from `datasets`, each with its weight; packs them if that was not done before.

    Raises DataError if one is damaged.
    """
    if packing == "best_fit":
        means = [packing_facts(path, sequence_length).attended_tokens for path in datasets]
    else:
        means = [mean_attended_tokens(DocumentEnds(path, "train").lengths(), sequence_length) for path in datasets]
    return sum(map(mul, means, datasets.values())) / sum(datasets.values())


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
