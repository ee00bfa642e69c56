"""The tokenizer that growctl trains for a mixture: one for all sources, made once, found again, never half-written."""

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
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, and the datasets of their mixture, without `data.tokenizer`, in `datasets`."""
    folder = tmp_path_factory.mktemp("mixed")
    write_texts(folder)
    prepare_data(block(folder), folder / "datasets")
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of the texts of `original`, of which nothing is prepared."""
    write_texts(tmp_path)
    return tmp_path


def block(folder: Path, *overrides: str, vocab_size: int = 300) -> DataBlock:
    schedule = mixed_schedule(folder)
    schedule["data"] |= {"tokenizer": None, "vocab_size": vocab_size}
    schedule["model"] = schedule["model"] | {"vocab_size": None}
    (folder / "trained.yaml").write_text(yaml.safe_dump(schedule))
    return load_schedule(str(folder / "trained.yaml"), overrides, runs_dir=folder / "runs").data


def tokenizers(datasets: Path) -> list[Path]:
    return sorted(datasets.glob(".tokenizer-*.json"))


def source_directories(mixture: Path) -> list[Path]:
    return [source.dataset(mixture) for source in read_dataset_manifest(mixture).sources]


def test_one_tokenizer_is_trained_on_the_train_splits_of_all_sources(original: Path) -> None:
    [(mixture, _)] = prepared_data(block(original), original / "datasets")
    assert verify_dataset(mixture).vocab_size == 300
    assert len(tokenizers(original / "datasets")) == 1
    tokenizer = Tokenizer.from_file(str(mixture / "tokenizer.json"))
    assert all(len(tokenizer.encode(f" {word}").ids) == 1 for word in ("books", "code"))
    for source in source_directories(mixture):
        assert (source / "tokenizer.json").read_bytes() == (mixture / "tokenizer.json").read_bytes()


def test_other_weights_another_order_and_another_spelling_keep_the_tokenizer_and_the_sources(original: Path) -> None:
    [(mixture, _)] = prepared_data(block(original), original / "datasets")
    data = block(original, "data.mixture.0.weight=1")
    spelled = {"name": "programs", "source": f"{original}/books/../code"}
    other = [data.mixture[1].model_copy(update=spelled), data.mixture[0]]
    again = prepare_data(data.model_copy(update={"mixture": other}), original / "datasets")
    assert source_directories(again) == source_directories(mixture)[::-1]
    assert len(tokenizers(original / "datasets")) == 1


@pytest.mark.parametrize("change", ["vocab_size", "text", "source"])
def test_what_determines_the_tokenizer_trains_another(folder: Path, change: str) -> None:
    datasets = folder / "datasets"
    prepare_data(block(folder), datasets)
    if change == "text":
        (folder / "code/00.txt").write_text("zyx " * 200)
    data = block(folder, vocab_size=290 if change == "vocab_size" else 300)
    if change == "source":
        shutil.copytree(folder / "code", folder / "more")
        more = data.mixture[1].model_copy(update={"name": "more", "source": str(folder / "more")})
        data = data.model_copy(update={"mixture": [*data.mixture, more]})
    prepare_data(data, datasets)
    assert len(tokenizers(datasets)) == 2


def test_a_damaged_tokenizer_is_trained_again_with_the_same_result(original: Path, tmp_path: Path) -> None:
    shutil.copytree(original / "datasets", tmp_path, dirs_exist_ok=True)
    [path] = tokenizers(tmp_path)
    intact, prepared = path.read_bytes(), set(tmp_path.glob("*/manifest.json"))
    path.write_bytes(intact[:-100])
    prepare_data(block(original), tmp_path)
    assert path.read_bytes() == intact
    assert set(tmp_path.glob("*/manifest.json")) == prepared, "nothing was prepared again"


def test_the_tokenizer_of_a_text_that_is_gone_is_found_again(folder: Path) -> None:
    said: list[str] = []
    mixture = prepare_data(block(folder), folder / "datasets")
    shutil.rmtree(folder / "code")
    assert prepare_data(block(folder), folder / "datasets", Progress(tell=said.append)) == mixture
    books, code = source_directories(mixture)
    assert f"{books} has the tokenizer of these texts" in said[0]
    for dataset in (mixture, books, code):
        shutil.rmtree(dataset)
    with pytest.raises(DataError, match=r"data\.mixture\.1\.source: '.*code' does not exist"):
        prepare_data(block(folder), folder / "datasets")


def test_an_error_while_the_tokenizer_is_trained_names_the_entry_and_leaves_nothing(folder: Path) -> None:
    for file in (folder / "code").iterdir():
        file.write_bytes(b"not UTF-8: \xff\xfe\xff")
    with pytest.raises(DataError, match=r"data\.mixture\.1\.source: .*is not UTF-8"):
        prepare_data(block(folder), folder / "datasets")
    assert not [path for path in (folder / "datasets").iterdir() if not path.name.endswith(".lock")]


def test_a_mixture_of_one_text_has_the_dataset_of_that_text(original: Path, tmp_path: Path) -> None:
    one = f"data.mixture=[{{name: books, source: {original}/books, weight: 1}}]"
    [books] = source_directories(prepare_data(block(original, one, *NO_WEIGHTS), tmp_path))
    plain = block(original, "~data.mixture", f"data.source={original}/books", *NO_WEIGHTS)
    assert prepare_data(plain, tmp_path) == books
    assert not tokenizers(tmp_path)


def test_prepared_datasets_bring_their_tokenizer(original: Path, tmp_path: Path) -> None:
    [(mixture, _)] = prepared_data(block(original), original / "datasets")
    books, code = (f"data.mixture.{i}.source={path}" for i, path in enumerate(source_directories(mixture)))
    again = prepare_data(block(original, books, code), tmp_path / "both")
    assert read_dataset_manifest(again).fingerprint == read_dataset_manifest(mixture).fingerprint
    one = block(original, books, "data.vocab_size=null")
    with pytest.raises(DataError, match=r"data\.mixture\.0\.source .* a tokenizer of its own") as error:
        prepare_data(one, tmp_path / "one")
    advised = str(error.value).rpartition("set data.tokenizer to ")[2]
    followed = one.model_copy(update={"tokenizer": advised})
    assert read_dataset_manifest(prepare_data(followed, tmp_path / "one")).vocab_size == 300
