"""stages/corpus/prepared.py: datasets that are there already, also as a source themselves, and mixtures of several."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from stages.checkpoint.files import hash_files
from stages.corpus import corpus as corpus_module
from stages.corpus import files
from stages.corpus.prepare import prepare
from stages.corpus.prepared import Ingredient, prepared_datasets, write_mixture
from stages.corpus.tasks import Progress
from stages.data.dataset import check_dataset, dataset_manifest_bytes, read_dataset_manifest, verify_dataset
from stages.data.errors import DataError
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.samples import TrainingSamples
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


def test_a_large_source_has_a_cache_of_hashes_so_that_only_changed_files_are_hashed(folder, tmp_path, monkeypatch):
    hashed: list[str] = []

    def prepared(expected: list[str]) -> Path:
        hashed.clear()
        dataset = prepare(spec_of(folder), tmp_path / "datasets")
        assert hashed == expected
        return dataset

    def watched(paths: list[Path]):
        hashed.extend(path.name for path in paths)
        return hash_files(paths)

    monkeypatch.setattr(files, "hash_files", watched)
    names = [path.name for path in sorted(folder.iterdir())]
    first = prepared(names)
    assert not list(first.parent.glob("*.hashes.json"))
    monkeypatch.setattr(corpus_module, "CACHED_BYTES", 0)
    assert prepared(names) == prepared([]) == first
    [cache] = first.parent.glob(".*.hashes.json")
    for damage in (b"{", b'{"x": 1}'):
        cache.write_bytes(damage)
        assert prepared(names) == first
    os.utime(folder / "03.txt", (0, 0))
    assert prepared(["03.txt"]) == first
    (folder / "04.txt").write_text("other 4")
    assert prepared(["04.txt"]) != first


LENGTH = 16
WEIGHTS = {"books": 6.0, "code": 3.0, "wiki": 1.0}


@pytest.fixture
def ingredients(tmp_path: Path) -> list[Ingredient]:
    directories = [
        write_dataset(tmp_path / "datasets/books", [3000, 1001], [1700], token_bytes=2),
        write_dataset(tmp_path / "datasets/code", [1700], [330]),
        write_dataset(tmp_path / "elsewhere/wiki", [500], [50]),
    ]
    return [Ingredient(*each) for each in zip(WEIGHTS, directories, WEIGHTS.values(), strict=True)]


@pytest.fixture
def mixture(ingredients: list[Ingredient], tmp_path: Path) -> Path:
    return write_mixture(ingredients, tmp_path / "datasets")


def test_a_mixture_has_sums_and_no_tokens_is_written_once_and_moves_with_its_datasets(mixture, ingredients, tmp_path):
    manifest = check_dataset(mixture)
    assert sorted(path.name for path in mixture.iterdir()) == ["manifest.json", "tokenizer.json"]
    assert manifest.splits["train"].num_tokens == 3000 + 1001 + 1700 + 500
    assert manifest.splits["validation"].num_bytes == 3 * (1700 + 330 + 50)
    assert {source.name: source.weight for source in manifest.sources} == WEIGHTS
    before = (mixture / "manifest.json").stat().st_mtime_ns
    assert write_mixture(ingredients, tmp_path / "datasets") == mixture
    assert (mixture / "manifest.json").stat().st_mtime_ns == before
    (mixture / "manifest.json").write_text("{}")
    assert write_mixture(ingredients, tmp_path / "datasets") == mixture
    assert (mixture.parent / f"broken-{mixture.name}/manifest.json").read_text() == "{}"
    (tmp_path / "datasets").rename(tmp_path / "moved")
    assert verify_dataset(tmp_path / "moved" / mixture.name) == manifest


def test_the_fingerprint_follows_from_names_datasets_and_base_weights(mixture, ingredients, tmp_path):
    (books, *others), fingerprints = ingredients, [read_dataset_manifest(mixture).fingerprint]
    for change in ({"epochs_at_most": 2.5}, {"name": "novels"}, {"dataset": others[0].dataset}, {"weight": 5}):
        changed = write_mixture([books._replace(**change), *others], tmp_path / "datasets")
        assert changed != mixture
        fingerprints.append(read_dataset_manifest(changed).fingerprint)
    assert fingerprints[0] == fingerprints[1]
    assert len({*fingerprints}) == 4


def test_a_missing_altered_or_exchanged_source_is_one_error_that_names_it(mixture, tmp_path):
    code = tmp_path / "datasets/code"
    shard = code / "train/00000.ds"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    assert verify_dataset(mixture, hashes=False)
    for change, message in (
        (lambda: None, r"datasets/code is damaged: train/00000\.ds does not have the hash"),
        (lambda: write_dataset(code, [1699], [330]), "its source 'code' is another dataset than .*/code"),
        (lambda: shutil.rmtree(code), "/code is not a dataset"),
    ):
        change()
        with pytest.raises(DataError, match=message):
            verify_dataset(mixture)


def test_sources_that_make_no_mixture_get_one_clear_error(mixture, ingredients, tmp_path):
    books, code, _ = ingredients
    with pytest.raises(DataError, match=r"data\.mixture: 'all' .* is a mixture itself; name its sources"):
        write_mixture([books, Ingredient("all", mixture, 1.0)], tmp_path / "datasets")
    manifest = read_dataset_manifest(code.dataset).model_copy(update={"tokenizer_sha256": "0"})
    (code.dataset / "manifest.json").write_bytes(dataset_manifest_bytes(manifest))
    with pytest.raises(DataError, match=r"data\.mixture: 'code' .*code\) has another tokenizer than 'books'"):
        write_mixture(ingredients, tmp_path / "datasets")


@pytest.mark.parametrize(("asked", "counts"), [(None, [106, 20, 3]), (1, [1, 1, 1]), (45, [28, 14, 3])])
def test_evaluation_windows_follow_the_base_weights_and_no_batch_has_two_sources(mixture, ingredients, asked, counts):
    windows = EvaluationWindows(mixture, "validation", LENGTH, asked)
    assert [source.num_windows for source in windows.sources] == counts
    assert [source.weight for source in windows.sources] == [0.6, 0.3, 0.1]
    assert len(windows) == sum(counts)
    alone = [
        EvaluationWindows(each.dataset, "validation", LENGTH, count).batch(0, count)
        for each, count in zip(ingredients, counts, strict=True)
    ]
    assert np.array_equal(np.concatenate(alone), windows.batch(0, len(windows)))
    batches, names = windows.batches(5), [windows.source(place).name for place in range(len(windows))]
    assert names == [name for name, count in zip(WEIGHTS, counts, strict=True) for _ in range(count)]
    assert [place for _, start, stop in batches for place in range(start, stop)] == [*range(len(windows))]
    for number, start, stop in batches:
        assert 0 < stop - start <= 5
        assert {*names[start:stop]} == {windows.sources[number].name}


def test_a_source_that_is_shorter_than_a_sample_is_named(mixture):
    assert len(EvaluationWindows(mixture, "validation", 49).sources) == 3
    said = r"^data\.mixture: 'wiki', the validation split of .* has 50 tokens, but .* larger data\.validation_fraction"
    with pytest.raises(DataError, match=said):
        EvaluationWindows(mixture, "validation", 50)
    with pytest.raises(DataError, match=r"^data\.mixture: 'wiki', the train split of .* has 500 tokens, but one"):
        TrainingSamples(mixture, 500, seed=0)
