"""The tokenizer that growctl trains for a mixture: one for all sources, made once, found again, never half-written."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer

from growctl.ladder.load import load_schedule
from growctl.schedule.data_block import DataBlock
from growctl.schedule.sources import prepare_data, prepared_data
from stages.corpus.tasks import Progress
from stages.data.dataset import read_dataset_manifest, verify_dataset
from stages.data.errors import DataError
from tests.growctl.mixed import mixed_schedule, write_texts

NO_WEIGHTS = ("~stages.1.mixture", "~stages.2.mixture")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    return folder


@pytest.fixture(scope="module")
def original(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The datasets of the mixture of `texts`, without `data.tokenizer`."""
    datasets = tmp_path_factory.mktemp("datasets")
    prepare_data(block(texts), datasets)
    return datasets


def block(folder: Path, *overrides: str, vocab_size: int = 300) -> DataBlock:
    schedule = mixed_schedule(folder)
    schedule["data"] = schedule["data"] | {"tokenizer": None, "vocab_size": vocab_size}
    schedule["model"] = schedule["model"] | {"vocab_size": None}
    (folder / "trained.yaml").write_text(yaml.safe_dump(schedule))
    return load_schedule(str(folder / "trained.yaml"), overrides, runs_dir=folder / "runs").data


def tokenizers(datasets: Path) -> list[Path]:
    return sorted(datasets.glob(".tokenizer-*.json"))


def source_directories(mixture: Path) -> list[Path]:
    return [source.dataset(mixture) for source in read_dataset_manifest(mixture).sources]


def test_one_tokenizer_is_trained_on_the_train_splits_of_all_sources(original: Path, texts: Path) -> None:
    [(mixture, _)] = prepared_data(block(texts), original)
    assert verify_dataset(mixture).vocab_size == 300
    assert len(tokenizers(original)) == 1
    tokenizer = Tokenizer.from_file(str(mixture / "tokenizer.json"))
    assert all(len(tokenizer.encode(f" {word}").ids) == 1 for word in ("books", "code"))
    for source in source_directories(mixture):
        assert (source / "tokenizer.json").read_bytes() == (mixture / "tokenizer.json").read_bytes()


def test_other_weights_another_order_and_another_spelling_keep_the_tokenizer_and_the_sources(
    original: Path, texts: Path
) -> None:
    [(mixture, _)] = prepared_data(block(texts), original)
    data = block(texts, "data.mixture.0.weight=1")
    reordered = data.model_copy(update={"mixture": data.mixture[::-1]})
    spelled = reordered.mixture[0].model_copy(update={"name": "programs", "source": f"{texts}/books/../code"})
    again = prepare_data(reordered.model_copy(update={"mixture": [spelled, reordered.mixture[1]]}), original)
    assert source_directories(again) == source_directories(mixture)[::-1]
    assert len(tokenizers(original)) == 1


@pytest.mark.parametrize("change", ["vocab_size", "text", "source"])
def test_what_determines_the_tokenizer_trains_another(original: Path, texts: Path, tmp_path: Path, change: str) -> None:
    folder, datasets = tmp_path / "texts", tmp_path / "datasets"
    shutil.copytree(original, datasets)
    shutil.copytree(texts, folder)
    if change == "text":
        prepare_data(block(folder), datasets)
        (folder / "code/00.txt").write_text("zyx " * 200)
    elif change == "source":
        prepare_data(block(folder), datasets)
        shutil.copytree(folder / "code", folder / "more")
    before = len(tokenizers(datasets))
    data = block(folder, vocab_size=290 if change == "vocab_size" else 300)
    if change == "source":
        more = data.mixture[1].model_copy(update={"name": "more", "source": str(folder / "more")})
        data = data.model_copy(update={"mixture": [*data.mixture, more]})
    prepare_data(data, datasets)
    assert len(tokenizers(datasets)) == before + 1


def test_a_damaged_tokenizer_is_trained_again_with_the_same_result(original: Path, texts: Path, tmp_path: Path) -> None:
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    [path] = tokenizers(tmp_path)
    intact = path.read_bytes()
    path.write_bytes(intact[:-100])
    prepared = set(tmp_path.glob("*/manifest.json"))
    prepare_data(block(texts), tmp_path)
    assert path.read_bytes() == intact
    assert set(tmp_path.glob("*/manifest.json")) == prepared, "nothing was prepared again"


def test_the_tokenizer_of_a_text_that_is_gone_is_found_again(original: Path, texts: Path, tmp_path: Path) -> None:
    folder, datasets = tmp_path / "texts", tmp_path / "datasets"
    shutil.copytree(texts, folder)
    mixture = prepare_data(block(folder), datasets)
    shutil.rmtree(folder / "code")
    said: list[str] = []
    assert prepare_data(block(folder), datasets, Progress(tell=said.append)) == mixture
    books, code = source_directories(mixture)
    assert f"{books} has the tokenizer of these texts, used without comparing them: data.mixture.1.source" in said[0]
    for dataset in (mixture, books, code):
        shutil.rmtree(dataset)
    with pytest.raises(DataError, match=r"data\.mixture\.1\.source: '.*code' does not exist"):
        prepare_data(block(folder), datasets)


def test_an_error_while_the_tokenizer_is_trained_names_the_entry_and_leaves_nothing(
    texts: Path, tmp_path: Path
) -> None:
    folder, datasets = tmp_path / "texts", tmp_path / "datasets"
    shutil.copytree(texts, folder)
    for file in (folder / "code").iterdir():
        file.write_bytes(b"not UTF-8: \xff\xfe\xff")
    with pytest.raises(DataError, match=r"data\.mixture\.1\.source: .*is not UTF-8"):
        prepare_data(block(folder), datasets)
    assert not [path for path in datasets.iterdir() if not path.name.endswith(".lock")]


def test_a_mixture_of_one_text_has_the_dataset_of_that_text(texts: Path, tmp_path: Path) -> None:
    one = f"data.mixture=[{{name: books, source: {texts}/books, weight: 1}}]"
    data = block(texts, one, *NO_WEIGHTS)
    [books] = source_directories(prepare_data(data, tmp_path))
    assert prepare_data(block(texts, "~data.mixture", f"data.source={texts}/books", *NO_WEIGHTS), tmp_path) == books
    assert not tokenizers(tmp_path)


def test_prepared_datasets_bring_their_tokenizer(original: Path, texts: Path, tmp_path: Path) -> None:
    [(mixture, _)] = prepared_data(block(texts), original)
    books, code = source_directories(mixture)
    both = block(texts, f"data.mixture.0.source={books}", f"data.mixture.1.source={code}")
    again = prepare_data(both, tmp_path / "both")
    assert read_dataset_manifest(again).fingerprint == read_dataset_manifest(mixture).fingerprint

    one = block(texts, f"data.mixture.0.source={books}", "data.vocab_size=null")
    with pytest.raises(DataError) as error:
        prepare_data(one, tmp_path / "one")
    assert f"data.mixture.0.source '{books}' is a prepared dataset with a tokenizer of its own" in str(error.value)
    advised = str(error.value).rpartition("set data.tokenizer to ")[2]
    followed = one.model_copy(update={"tokenizer": advised})
    assert read_dataset_manifest(prepare_data(followed, tmp_path / "one")).vocab_size == 300


def test_a_schedule_of_a_mixture_needs_no_tokenizer_and_no_size_of_the_vocabulary(texts: Path) -> None:
    block(texts)
    schedule = load_schedule(str(texts / "trained.yaml"), runs_dir=texts / "runs")
    assert (schedule.data.tokenizer, schedule.vocab_size) == (None, 300)
    assert "shared_tokenizer" not in json.loads(schedule.model_dump_json())["data"]
