"""A dataset is enough without its text."""

import os
import shutil
from pathlib import Path

import pytest

from stages.corpus.prepare import prepare
from stages.corpus.tasks import Progress
from stages.data.errors import DataError
from stages.data.spec import DataSpec


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number}.txt").write_text(f"text {number}")
    return folder


def spec_of(source: Path, **values: object) -> DataSpec:
    return DataSpec.model_validate({"source": str(source), "vocab_size": 300, "validation_fraction": 0.2} | values)


def test_the_newest_dataset_of_the_same_settings_is_enough_without_its_text(texts: Path, tmp_path: Path) -> None:
    datasets = tmp_path / "datasets"
    lines: list[str] = []
    first = prepare(spec_of(texts), datasets, progress=Progress(tell=lines.append))
    (texts / "0.txt").write_text("another text")
    second = prepare(spec_of(texts), datasets, progress=Progress(tell=lines.append))
    os.utime(first / "manifest.json", (1, 1))
    assert lines == []
    shutil.rmtree(texts)
    assert prepare(spec_of(texts, workers=2), datasets, progress=Progress(tell=lines.append)) == second != first
    [line] = lines
    assert line.startswith(f"{second}, prepared with these settings, is used without comparing its text: ")
    assert f"data.source: '{texts}' does not exist" in line
    with pytest.raises(DataError, match="does not exist"):
        prepare(spec_of(texts, validation_fraction=0.3), datasets)
    for dataset in (first, second):
        (dataset / "tokenizer.json").write_text("damaged")
    with pytest.raises(DataError, match="does not exist"):
        prepare(spec_of(texts), datasets)


def test_a_text_that_can_be_read_but_not_used_is_an_error_although_a_dataset_exists(
    texts: Path, tmp_path: Path
) -> None:
    prepare(spec_of(texts), tmp_path / "datasets")
    (texts / "0.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match="is not UTF-8"):
        prepare(spec_of(texts), tmp_path / "datasets")
