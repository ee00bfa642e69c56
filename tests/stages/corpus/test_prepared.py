"""Datasets that are there already: one whose text is gone, and a `data.source` that is a dataset itself."""

import os
import shutil
from pathlib import Path

import pytest

from stages.corpus.prepare import prepare
from stages.corpus.prepared import prepared_datasets
from stages.corpus.tasks import Progress
from stages.data.dataset import read_dataset_manifest
from stages.data.errors import DataError
from stages.data.spec import DataSpec
from tests.stages.corpus.small_source import spec_of
from tests.stages.data.test_dataset import write_dataset


def test_the_newest_dataset_of_the_same_settings_is_enough_without_its_text(folder: Path, tmp_path: Path) -> None:
    datasets = tmp_path / "datasets"
    lines: list[str] = []
    first = prepare(spec_of(folder), datasets, progress=Progress(tell=lines.append))
    (folder / "00.txt").write_text("another text")
    second = prepare(spec_of(folder), datasets, progress=Progress(tell=lines.append))
    os.utime(first / "manifest.json", (1, 1))
    assert lines == []
    shutil.rmtree(folder)
    assert prepare(spec_of(folder, workers=2), datasets, progress=Progress(tell=lines.append)) == second != first
    [line] = lines
    assert line.startswith(f"{second}, prepared with these settings, is used without comparing its text: ")
    assert f"data.source: '{folder}' does not exist" in line
    with pytest.raises(DataError, match="does not exist"):
        prepare(spec_of(folder, validation_fraction=0.3), datasets)
    for dataset in (first, second):
        (dataset / "tokenizer.json").write_text("damaged")
    with pytest.raises(DataError, match="does not exist"):
        prepare(spec_of(folder), datasets)


def test_a_text_that_can_be_read_but_not_used_is_an_error_although_a_dataset_exists(
    folder: Path, tmp_path: Path
) -> None:
    prepare(spec_of(folder), tmp_path / "datasets")
    (folder / "00.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match="is not UTF-8"):
        prepare(spec_of(folder), tmp_path / "datasets")


def test_a_dataset_as_source_is_used_as_it_is_unless_it_is_damaged_or_a_setting_differs(tmp_path: Path) -> None:
    dataset, datasets = write_dataset(tmp_path / "given", [100], [100]), tmp_path / "datasets"
    spec = DataSpec(source=str(dataset))
    assert prepare(spec, datasets) == dataset
    assert prepare(spec.model_copy(update={"vocab_size": 2**16}), datasets) == dataset
    assert not datasets.exists()
    assert [*prepared_datasets(spec, datasets)] == [(dataset, read_dataset_manifest(dataset))]
    message = r"data\.vocab_size: 300, but data\.source '.*given' is a prepared dataset, which was made with 65536"
    with pytest.raises(DataError, match=message):
        prepare(DataSpec(source=str(dataset), vocab_size=300), datasets)
    (dataset / "train/00000.ds").write_bytes(bytes(400))
    with pytest.raises(DataError, match=r"data\.source: .*given is damaged: train/00000\.ds does not have the hash"):
        prepare(spec, datasets)
    assert (dataset / "manifest.json").exists()
