"""stages/corpus/prepared.py and samples.py: a directory that is a mixture, on hand-made tokens."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from stages.corpus.prepared import Ingredient, write_mixture
from stages.data.dataset import check_dataset, dataset_manifest_bytes, read_dataset_manifest, verify_dataset
from stages.data.errors import DataError
from stages.data.evaluation_windows import EvaluationWindows
from stages.data.samples import TrainingSamples
from stages.spec import MixtureSpan
from tests.stages.data.test_dataset import write_dataset

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
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + b"x")
    assert verify_dataset(mixture, hashes=False)
    for change, hashes, message in (
        (lambda: None, True, r"datasets/code is damaged: train/00000\.ds does not have the hash"),
        (lambda: shard.write_bytes(content[:-4]), False, r"code is damaged: .*\.ds has 6796 bytes, not 6800"),
        (lambda: write_dataset(code, [1699], [330]), True, "its source 'code' is another dataset than .*/code"),
        (lambda: shutil.rmtree(code), True, "/code is not a dataset"),
    ):
        change()
        with pytest.raises(DataError, match=message):
            verify_dataset(mixture, hashes=hashes)


def test_sources_that_make_no_mixture_get_one_clear_error(mixture, ingredients, tmp_path):
    books, code, _ = ingredients
    with pytest.raises(DataError, match=r"data\.mixture: 'all' .* is a mixture itself; name its sources"):
        write_mixture([books, Ingredient("all", mixture, 1.0)], tmp_path / "datasets")
    manifest = read_dataset_manifest(code.dataset).model_copy(update={"tokenizer_sha256": "0"})
    (code.dataset / "manifest.json").write_bytes(dataset_manifest_bytes(manifest))
    with pytest.raises(DataError, match=r"data\.mixture: 'code' .*code\) has another tokenizer than 'books'"):
        write_mixture(ingredients, tmp_path / "datasets")


def test_samples_of_a_mixture_follow_its_own_weights_or_those_of_the_spans(mixture):
    own = MixtureSpan(first_window=0, weights=WEIGHTS)
    expected = TrainingSamples(mixture, LENGTH, 3, [own]).batch(0, 500)
    assert np.array_equal(TrainingSamples(mixture, LENGTH, 3).batch(0, 500), expected)
    opened = TrainingSamples(mixture, LENGTH, 3, [own, MixtureSpan(first_window=200, weights={"wiki": 1.0})])
    assert opened.tokens_by_source(200, 40) == {"books": 0, "code": 0, "wiki": 40 * LENGTH}


def test_a_source_is_read_no_more_often_than_the_mixture_says(ingredients, tmp_path):
    *most, wiki = ingredients
    limited = write_mixture([*most, wiki._replace(epochs_at_most=1)], tmp_path / "datasets")
    with pytest.raises(DataError, match=r"'wiki' has 500 tokens and may be read 1 time "):
        TrainingSamples(limited, LENGTH, 3).batch(400, 10)
    assert TrainingSamples(limited, LENGTH, 3, when_exhausted="others").epochs_by_source(1000)["wiki"] == 1


@pytest.mark.parametrize(
    ("asked", "counts"), [(None, [106, 20, 3]), (20, [12, 6, 2]), (1, [1, 1, 1]), (45, [28, 14, 3])]
)
def test_evaluation_windows_are_shared_out_by_base_weight_and_no_batch_has_two_sources(
    mixture, ingredients, asked, counts
):
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
    with pytest.raises(DataError, match=r"^data\.mixture: 'wiki', the validation split of .* has 50 tokens, but one"):
        EvaluationWindows(mixture, "validation", 50)
    with pytest.raises(DataError, match=r"^data\.mixture: 'wiki', the train split of .* has 500 tokens, but one"):
        TrainingSamples(mixture, 500, seed=0)
