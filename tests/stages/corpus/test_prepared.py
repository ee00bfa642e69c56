"""Datasets that are there already: one whose text is gone, one that is a source itself, and hashes of large sources."""

import os
import shutil
from pathlib import Path

import pytest

from stages.checkpoint.files import hash_file, hash_files
from stages.corpus import corpus as corpus_module
from stages.corpus import files
from stages.corpus.prepare import prepare
from stages.corpus.prepared import prepared_datasets
from stages.corpus.tasks import Progress
from stages.data.dataset import read_dataset_manifest
from stages.data.errors import DataError
from stages.data.spec import DataSpec
from tests.stages.corpus.small_source import spec_of
from tests.stages.data.test_dataset import write_dataset


def test_the_newest_dataset_of_the_same_settings_is_enough_without_its_text(folder, tmp_path):
    datasets, told = tmp_path / "datasets", list[str]()
    progress = Progress(tell=told.append)
    first = prepare(spec_of(folder), datasets, progress=progress)
    (folder / "00.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match="is not UTF-8"):
        prepare(spec_of(folder), datasets, progress=progress)
    (folder / "00.txt").write_text("another text")
    second = prepare(spec_of(folder), datasets, progress=progress)
    os.utime(first / "manifest.json", (1, 1))
    assert told == []
    shutil.rmtree(folder)
    assert prepare(spec_of(folder, workers=2), datasets, progress=progress) == second != first
    [line] = told
    assert line.startswith(f"{second}, prepared with these settings, is used without comparing its text: ")
    assert f"data.source: '{folder}' does not exist" in line
    with pytest.raises(DataError, match="does not exist"):
        prepare(spec_of(folder, validation_fraction=0.3), datasets)
    for dataset in (first, second):
        (dataset / "tokenizer.json").write_text("damaged")
    with pytest.raises(DataError, match="does not exist"):
        prepare(spec_of(folder), datasets)


def test_a_dataset_as_source_is_used_as_it_is_unless_it_is_damaged_or_a_setting_differs(tmp_path):
    dataset, datasets = write_dataset(tmp_path / "given", [100], [100]), tmp_path / "datasets"
    spec = DataSpec(source=str(dataset))
    for same in (spec, spec.model_copy(update={"vocab_size": 2**16})):
        assert prepare(same, datasets) == dataset
    assert not datasets.exists()
    assert [*prepared_datasets(spec, datasets)] == [(dataset, read_dataset_manifest(dataset))]
    message = r"data\.vocab_size: 300, but data\.source '.*given' is a prepared dataset, which was made with 65536"
    with pytest.raises(DataError, match=message):
        prepare(spec.model_copy(update={"vocab_size": 300}), datasets)
    (dataset / "train/00000.ds").write_bytes(bytes(400))
    with pytest.raises(DataError, match=r"data\.source: .*given is damaged: train/00000\.ds does not have the hash"):
        prepare(spec, datasets)
    assert (dataset / "manifest.json").exists()


def test_only_a_large_source_has_a_cache_of_hashes_by_which_only_changed_files_are_hashed(
    folder, tmp_path, monkeypatch
):
    hashed: list[str] = []

    def prepared(expected: list[str]) -> Path:
        hashed.clear()
        dataset = prepare(spec_of(folder), tmp_path / "datasets")
        assert hashed == expected
        return dataset

    monkeypatch.setattr(
        files, "hash_files", lambda paths: hashed.extend(path.name for path in paths) or hash_files(paths)
    )
    names = [path.name for path in sorted(folder.iterdir())]
    first = prepared(names)
    assert not list(first.parent.glob("*.hashes.json"))
    monkeypatch.setattr(corpus_module, "CACHED_BYTES", 0)
    assert prepared(names) == prepared([]) == first
    [cache] = first.parent.glob(".*.hashes.json")
    sources = [files.SourceFile(str(folder / name), name, (folder / name).stat().st_size, "") for name in names]
    for _ in range(2):
        found = files.with_hashes(sources, tmp_path / "memory.json")
        assert [file.version for file in found] == [hash_file(Path(file.path)) for file in sources]
    good = cache.read_bytes()
    for damage in (b"", b"[1]", b"{", b'{"x": 1}'):
        cache.write_bytes(damage)
        assert prepared(names) == first
        assert cache.read_bytes() == good
    os.utime(folder / "03.txt", (0, 0))
    assert prepared(["03.txt"]) == first
    (folder / "04.txt").write_text("other 4")
    assert prepared(["04.txt"]) != first
