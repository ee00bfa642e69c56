"""stages/data/document_ends.py: where documents end, on hand-made index files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.data import documents
from stages.data.dataset import DatasetFile, DatasetSplit
from stages.data.documents import document_lengths
from stages.data.errors import DataError
from tests.stages.data.test_dataset import write_manifest


def write_dataset(directory: Path, shards: Sequence[Sequence[int]]) -> Path:
    """A dataset whose train shards have documents of these lengths; the tokens are all 0."""
    files = []
    (directory / "train").mkdir(parents=True, exist_ok=True)
    for number, lengths in enumerate(shards):
        ends = np.cumsum(lengths).astype("<u8").tobytes()
        for ending, content in (("ds", bytes(2 * sum(lengths))), ("ds.index", ends)):
            name = f"train/{number:05d}.{ending}"
            (directory / name).write_bytes(content)
            files.append(DatasetFile(name=name, bytes=len(content), sha256=""))
    num_tokens, num_documents = sum(map(sum, shards)), sum(map(len, shards))
    train = DatasetSplit(num_tokens=num_tokens, num_bytes=0, num_documents=num_documents, files=tuple(files))
    validation = DatasetSplit(num_tokens=0, num_bytes=0, num_documents=0, files=())
    return write_manifest(directory, {"train": train, "validation": validation})


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=4), st.sampled_from([1, 5, 100])
)
def test_lengths_of_documents_are_those_written(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[int]], at_once: int
) -> None:
    dataset = write_dataset(tmp_path_factory.mktemp("dataset"), shards)
    lengths = [length for shard in shards for length in shard]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "READ_AT_ONCE", at_once)
        parts = list(document_lengths(dataset, "train"))
    assert np.concatenate(parts).tolist() == lengths
    assert max(map(len, parts)) <= at_once


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((3, 4, 2**63 + 9), "is damaged: the index files of train do not fit its manifest"),
        ((3, 9), r"is damaged: train/00000\.ds\.index has 16 bytes, not 24 as in the manifest"),
        (None, r"00000\.ds\.index is missing"),
    ],
)
def test_a_damaged_or_missing_index_is_one_error_that_names_it(
    tmp_path: Path, ends: tuple[int, ...] | None, message: str
) -> None:
    dataset = write_dataset(tmp_path, [[3, 1, 5]])
    index = dataset / "train/00000.ds.index"
    index.unlink()
    if ends:
        index.write_bytes(np.array(ends, "<u8").tobytes())
    with pytest.raises(DataError, match=message):
        list(document_lengths(dataset, "train"))
