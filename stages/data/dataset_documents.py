"""The documents of a prepared dataset, one by one: tokens and where each ends."""

from pathlib import Path

import numpy as np

from stages.data.corpus import DataError, SplitName
from stages.data.dataset import read_dataset_manifest, shard_tokens
from stages.token_files.datatrove import joined
from stages.token_files.files import TokenFiles
from stages.token_files.mapped import mapped


def split_documents(dataset_dir: Path, split: SplitName) -> TokenFiles:
    """The documents of a split. Raises DataError if its indices do not hold all of them."""
    manifest = read_dataset_manifest(dataset_dir)
    described = manifest.splits[split]
    names = {file.name for file in described.files}
    shards = [file for file in described.files if file.name.endswith(".ds")]
    indices = [
        mapped(dataset_dir / f"{file.name}.index", "<u8") if f"{file.name}.index" in names else np.empty(0, "<u8")
        for file in shards
    ]
    found = joined(
        dataset_dir / split,
        [dataset_dir / file.name for file in shards],
        indices,
        manifest.token_bytes,
        [shard_tokens(file, manifest.token_bytes) for file in shards],
    )
    last = int(found.ends(found.num_documents - 1, found.num_documents)[0]) if found.num_documents else 0
    if (found.num_documents, last) != (described.num_documents, described.num_tokens):
        raise DataError(
            f"{dataset_dir} is damaged: the indices of {split} end {found.num_documents:,} documents after"
            f" {last:,} tokens, and its manifest says {described.num_documents:,} after {described.num_tokens:,}"
        )
    return found
