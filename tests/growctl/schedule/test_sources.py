"""The datasets of a mixture and the tokenizer that growctl trains for it: made once, found again, never half made."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from growctl.ladder.load import load_schedule
from growctl.run.requests import schedule_yaml
from growctl.runs.storage import DatasetUse
from growctl.schedule.blocks import Schedule
from growctl.schedule.data_block import DataBlock
from growctl.schedule.sources import missing_data, prepare_data, prepared_data
from stages.corpus.tasks import Progress
from stages.data.dataset import read_dataset_manifest, verify_dataset
from stages.data.errors import DataError
from tests.growctl.ladder import spec_of
from tests.growctl.mixed import SCHEDULE, mixed_schedule, write_schedule, write_texts
from tests.growctl.runs import run_here

NO_WEIGHTS = ("~stages.1.mixture", "~stages.2.mixture")


def loaded(folder: Path, *overrides: str) -> Schedule:
    """The schedule of the mixture of texts in `folder`, whose tokenizer is given."""
    return load_schedule(str(write_schedule(folder)), overrides, runs_dir=folder / "runs")


def trained(folder: Path, *overrides: str, vocab_size: int = 300) -> DataBlock:
    """The same mixture, without `data.tokenizer`."""
    data: dict[str, Any] = mixed_schedule(folder)["data"] | {"tokenizer": None, "vocab_size": vocab_size}
    path = write_schedule(folder, data=data, model=SCHEDULE["model"] | {"vocab_size": None})
    return load_schedule(str(path), overrides, runs_dir=folder / "runs").data


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, whose mixture is prepared in `runs` with a given tokenizer and in `trained` without one."""
    folder = tmp_path_factory.mktemp("mixed")
    write_texts(folder)
    run_here("prepare", write_schedule(folder), "--runs-dir", folder / "runs")
    prepare_data(trained(folder), folder / "trained")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with texts of which nothing is prepared."""
    write_texts(tmp_path)
    return tmp_path


def mixture_in(datasets: Path) -> Path:
    [mixture] = datasets.glob("mixture-*")
    return mixture


def sources_of(mixture: Path) -> list[Path]:
    return [source.dataset(mixture) for source in read_dataset_manifest(mixture).sources]


def tokenizers(datasets: Path) -> list[Path]:
    return sorted(datasets.glob(".tokenizer-*.json"))


def test_every_source_is_prepared_and_then_the_mixture_which_later_schedules_find(original: Path) -> None:
    datasets, mixture = original / "runs/.datasets", mixture_in(original / "runs/.datasets")
    manifest = verify_dataset(mixture)
    assert [(source.name, source.weight) for source in manifest.sources] == [("books", 3.0), ("code", 1.0)]
    for override, found in (
        ("seed=1", [mixture]),
        ("stages.0.mixture={code: 1}", [mixture]),
        ("data.mixture.0.weight=2", []),
    ):
        assert [path for path, _ in prepared_data(loaded(original, override).data, datasets)] == found
    out, _ = run_here("prepare", write_schedule(original), "--runs-dir", original / "runs", "--json")
    assert json.loads(out)["path"] == str(mixture)


def test_a_missing_source_is_named_by_its_entry_before_any_other_is_prepared(folder: Path) -> None:
    path, given = write_schedule(folder), ("--runs-dir", folder / "new")
    shutil.rmtree(folder / "code")
    missing = missing_data(loaded(folder).data, folder / "new")
    assert missing
    assert missing.startswith(f"data.mixture.1.source: '{folder}/code' does not exist; ")
    for command in (("validate",), ("run", "--dry-run"), ("prepare",)):
        _, err = run_here(*command, path, *given, expect=2)
        assert missing in err
    (folder / "code").mkdir()
    with pytest.raises(DataError, match=r"data\.mixture\.1\.include: no file of the folder .* matches '\*\*/\*'"):
        prepare_data(loaded(folder).data, folder / "empty")
    assert not list(folder.glob("new/.datasets/*/"))


@pytest.mark.parametrize("case", ["begun", "without its mixture", "with a damaged mixture"])
def test_clean_keeps_sources_and_all_data_of_a_damaged_mixture(original: Path, tmp_path: Path, case: str) -> None:
    runs, schedule = tmp_path / "runs", loaded(original)
    shutil.copytree(original / "runs", runs)
    stage, mixture = runs / "mixed/stages/0-a", mixture_in(runs / ".datasets")
    stage.mkdir(parents=True)
    (runs / "mixed/schedule.yaml").write_text(schedule_yaml(schedule))
    if case == "without its mixture":
        shutil.rmtree(mixture)
    else:
        (stage / "spec.json").write_text(spec_of(schedule, dataset=str(mixture)).model_dump_json())
    if case == "with a damaged mixture":
        (mixture / "manifest.json").write_text("{")
    use = DatasetUse.of(runs)
    assert ("mixed" in use.unknown) == (case == "with a damaged mixture")
    if not use.unknown:
        expected = ["books", "code", "mixture"] if case == "begun" else ["books", "code"]
        assert sorted(name.partition("-")[0] for name in use.runs) == expected


def test_a_mixture_is_no_text_to_train_on(original: Path, tmp_path: Path) -> None:
    data = loaded(original).data.model_copy(update={"mixture": [], "source": str(mixture_in(original / "trained"))})
    with pytest.raises(DataError, match=r"data\.source: '.*' is a mixture itself; name its sources \(books, code\)"):
        prepare_data(data, tmp_path)


def test_one_tokenizer_is_trained_on_the_train_splits_of_all_sources(original: Path) -> None:
    mixture = mixture_in(original / "trained")
    assert verify_dataset(mixture).vocab_size == 300
    assert len(tokenizers(original / "trained")) == 1
    tokenizer = Tokenizer.from_file(str(mixture / "tokenizer.json"))
    assert all(len(tokenizer.encode(f" {word}").ids) == 1 for word in ("books", "code"))
    for source in sources_of(mixture):
        assert (source / "tokenizer.json").read_bytes() == (mixture / "tokenizer.json").read_bytes()


def test_other_weights_order_and_spelling_keep_the_tokenizer_and_the_sources(original: Path, tmp_path: Path) -> None:
    datasets = shutil.copytree(original / "trained", tmp_path / "trained")
    data = trained(original, "data.mixture.0.weight=1")
    spelled = {"name": "programs", "source": f"{original}/books/../code"}
    other = [data.mixture[1].model_copy(update=spelled), data.mixture[0]]
    again = prepare_data(data.model_copy(update={"mixture": other}), datasets)
    before = sources_of(mixture_in(original / "trained"))
    assert [path.name for path in sources_of(again)] == [path.name for path in before][::-1]
    assert len(tokenizers(datasets)) == 1


@pytest.mark.parametrize("change", ["vocab_size", "text", "source"])
def test_what_determines_the_tokenizer_trains_another(folder: Path, change: str) -> None:
    datasets = folder / "datasets"
    prepare_data(trained(folder), datasets)
    if change == "text":
        (folder / "code/00.txt").write_text("zyx " * 200)
    data = trained(folder, vocab_size=290 if change == "vocab_size" else 300)
    if change == "source":
        shutil.copytree(folder / "code", folder / "more")
        more = data.mixture[1].model_copy(update={"name": "more", "source": str(folder / "more")})
        data = data.model_copy(update={"mixture": [*data.mixture, more]})
    prepare_data(data, datasets)
    assert len(tokenizers(datasets)) == 2


def test_a_damaged_tokenizer_is_trained_again_with_the_same_result(original: Path, tmp_path: Path) -> None:
    datasets = shutil.copytree(original / "trained", tmp_path / "trained")
    [path] = tokenizers(datasets)
    intact, prepared = path.read_bytes(), set(datasets.glob("*/manifest.json"))
    path.write_bytes(intact[:-100])
    prepare_data(trained(original), datasets)
    assert path.read_bytes() == intact
    assert set(datasets.glob("*/manifest.json")) == prepared, "nothing was prepared again"


def test_the_tokenizer_of_a_text_that_is_gone_is_found_again(folder: Path) -> None:
    said: list[str] = []
    mixture = prepare_data(trained(folder), folder / "datasets")
    shutil.rmtree(folder / "code")
    assert prepare_data(trained(folder), folder / "datasets", Progress(tell=said.append)) == mixture
    books, code = sources_of(mixture)
    assert f"{books} has the tokenizer of these texts" in said[0]
    for dataset in (mixture, books, code):
        shutil.rmtree(dataset)
    with pytest.raises(DataError, match=r"data\.mixture\.1\.source: '.*code' does not exist"):
        prepare_data(trained(folder), folder / "datasets")


def test_an_error_while_the_tokenizer_is_trained_names_the_entry_and_leaves_nothing(folder: Path) -> None:
    for file in (folder / "code").iterdir():
        file.write_bytes(b"not UTF-8: \xff\xfe\xff")
    with pytest.raises(DataError, match=r"data\.mixture\.1\.source: .*is not UTF-8"):
        prepare_data(trained(folder), folder / "datasets")
    assert not [path for path in (folder / "datasets").iterdir() if not path.name.endswith(".lock")]


def test_a_mixture_of_one_text_has_the_dataset_of_that_text(original: Path, tmp_path: Path) -> None:
    one = f"data.mixture=[{{name: books, source: {original}/books, weight: 1}}]"
    [books] = sources_of(prepare_data(trained(original, one, *NO_WEIGHTS), tmp_path))
    plain = trained(original, "~data.mixture", f"data.source={original}/books", *NO_WEIGHTS)
    assert prepare_data(plain, tmp_path) == books
    assert not tokenizers(tmp_path)


def test_prepared_datasets_bring_their_tokenizer(original: Path, tmp_path: Path) -> None:
    mixture = mixture_in(original / "trained")
    books, code = (f"data.mixture.{i}.source={path}" for i, path in enumerate(sources_of(mixture)))
    again = prepare_data(trained(original, books, code), tmp_path / "both")
    assert not list(tmp_path.glob("both/books*")), "a prepared source is used where it is"
    assert read_dataset_manifest(again).fingerprint == read_dataset_manifest(mixture).fingerprint
    one = trained(original, books, "data.vocab_size=null")
    with pytest.raises(DataError, match=r"data\.mixture\.0\.source .* a tokenizer of its own") as error:
        prepare_data(one, tmp_path / "one")
    advised = str(error.value).rpartition("set data.tokenizer to ")[2]
    followed = one.model_copy(update={"tokenizer": advised})
    assert read_dataset_manifest(prepare_data(followed, tmp_path / "one")).vocab_size == 300
