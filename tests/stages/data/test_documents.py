"""stages/data/documents.py: where documents end, and how far attention reaches within them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.data import documents
from stages.data.dataset import DatasetFile, DatasetSplit, dataset_manifest_bytes, dataset_parts, read_dataset_manifest
from stages.data.documents import document_lengths, mean_attended_tokens, misplaced_ends
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


shards_of_documents = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=4)


@settings(max_examples=40)
@given(shards_of_documents, st.sampled_from([1, 5, 100]))
def test_lengths_of_documents_are_those_written(tmp_path_factory, shards, at_once):
    dataset = write_dataset(tmp_path_factory.mktemp("dataset"), shards)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "READ_AT_ONCE", at_once)
        parts = list(document_lengths(dataset, "train"))
    assert np.concatenate(parts).tolist() == [length for shard in shards for length in shard]
    assert max(map(len, parts)) <= at_once


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ((3, 4, 2**63 + 9), "is damaged: the index files of train do not fit its manifest"),
        ((3, 9), r"is damaged: train/00000\.ds\.index has 16 bytes, not 24 as in the manifest"),
        (None, r"00000\.ds\.index is missing"),
    ],
)
def test_a_damaged_or_missing_index_is_one_error_that_names_it(tmp_path, ends, message):
    dataset = write_dataset(tmp_path, [[3, 1, 5]])
    index = dataset / "train/00000.ds.index"
    index.unlink()
    if ends:
        index.write_bytes(np.array(ends, "<u8").tobytes())
    with pytest.raises(DataError, match=message):
        list(document_lengths(dataset, "train"))


@settings(max_examples=60)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=6), st.integers(1, 20), st.integers(0, 5))
def test_the_tokens_attended_to_are_those_counted_in_every_window_of_a_circular_stream(lengths, length, cut):
    lengths = [*lengths, max(1, length)]  # a window may not hold more than the stream
    document, total = np.repeat(np.arange(len(lengths)), lengths), 0
    for start in range(len(document)):
        window = np.take(document, range(start, start + length), mode="wrap")
        total += sum(len(piece) ** 2 for piece in np.split(window, np.flatnonzero(np.diff(window)) + 1))
    parts = [np.array(part, np.int64) for part in (lengths[:cut], lengths[cut:])]
    assert mean_attended_tokens(parts, length) == pytest.approx(total / (len(document) * length), rel=1e-12)


def test_every_source_of_a_mixture_must_end_its_documents_in_the_same_token(tmp_path):
    datasets = [write_dataset(tmp_path / name, [[5, 9]]) for name in ("a", "b")]
    assert misplaced_ends([part for path in datasets for part in dataset_parts(path)]) is None
    second = datasets[1]
    other = read_dataset_manifest(second).model_copy(update={"end_of_text_id": 7})
    (second / "manifest.json").write_bytes(dataset_manifest_bytes(other))
    said = misplaced_ends([part for path in datasets for part in dataset_parts(path)])
    assert said == f"the documents of {second} end in <|endoftext|> (id 7), not in the end of text with id 0"
