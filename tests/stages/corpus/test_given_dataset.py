"""A `data.source` that is a prepared dataset itself, such as one that `growctl data import` made."""

from pathlib import Path

import pytest

from stages.corpus.prepare import prepare
from stages.corpus.prepared import prepared_datasets
from stages.data.dataset import read_dataset_manifest
from stages.data.errors import DataError
from stages.data.spec import DataSpec
from tests.stages.data.test_dataset import write_dataset


def test_a_dataset_as_source_is_used_as_it_is(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "given", [100], [100])
    spec = DataSpec(source=str(dataset))
    assert prepare(spec, tmp_path / "datasets") == dataset
    assert not (tmp_path / "datasets").exists()
    [(found, manifest)] = prepared_datasets(spec, tmp_path / "datasets")
    assert found == dataset
    assert manifest == read_dataset_manifest(dataset)


def test_a_damaged_dataset_as_source_is_rejected_and_left_where_it_is(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "given", [100], [100])
    (dataset / "train/00000.ds").write_bytes(bytes(400))
    with pytest.raises(DataError, match=r"data\.source: .*given is damaged: train/00000\.ds does not have the hash"):
        prepare(DataSpec(source=str(dataset)), tmp_path / "datasets")
    assert (dataset / "manifest.json").exists()


def test_settings_that_differ_from_the_dataset_are_rejected(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "given", [100], [100])
    message = r"data\.vocab_size: 300, but data\.source '.*given' is a prepared dataset, which was made with 65536"
    with pytest.raises(DataError, match=message):
        prepare(DataSpec(source=str(dataset), vocab_size=300), tmp_path / "datasets")
    prepare(DataSpec(source=str(dataset), vocab_size=2**16), tmp_path / "datasets")
