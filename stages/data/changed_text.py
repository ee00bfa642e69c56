"""Compares a local text with the one that a dataset was prepared from."""

from pathlib import Path

from stages.data.corpus import DataSpec, open_corpus
from stages.data.dataset import read_dataset_manifest
from stages.data.location import PYTHON_STDLIB, local_path
from stages.data.prepare import remembered_hashes
from stages.data.prepared import given_dataset
from stages.data.source_errors import DataError


def text_change(spec: DataSpec, dataset: Path) -> str | None:
    """How the local text of `spec` differs from what `dataset` was prepared from, as a clause; None if it does not.

    None also if that cannot be told: the text is gone or not local. A large text is not hashed again: if the times of
    its files have changed, the clause says only that.
    """
    recorded = read_dataset_manifest(dataset).source_sha256
    if recorded is None or given_dataset(spec) or (spec.source != PYTHON_STDLIB and local_path(spec.source) is None):
        return None
    try:
        corpus = open_corpus(spec.in_one_spelling())
        hashes = remembered_hashes(corpus, dataset.parent)
        if not hashes.remembers([Path(file.path) for file in corpus.files]):
            return "has files with other sizes or times than when" if hashes.memory_exists else None
        return None if corpus.sha256(corpus.contents(hashes)) == recorded else "has changed since"
    except (DataError, OSError):
        return None
