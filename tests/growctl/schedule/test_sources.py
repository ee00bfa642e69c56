"""The datasets of a mixture: prepared, found again, missing, changed, and kept by `clean`."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from growctl.ladder.datasets import DatasetSizes, dataset_warnings
from growctl.ladder.load import load_schedule
from growctl.ladder.stage_plans import plan_stages, worker_spec
from growctl.run.requests import schedule_yaml
from growctl.runs.storage import DatasetUse
from growctl.schedule.blocks import Schedule
from growctl.schedule.sources import missing_data, prepare_data, prepared_data
from stages.data.dataset import read_dataset_manifest, verify_dataset
from stages.data.errors import DataError
from tests.growctl.mixed import write_schedule, write_texts
from tests.growctl.runs import run_here


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, mixed.yaml, and the mixture prepared in `runs`."""
    folder = tmp_path_factory.mktemp("mixed")
    write_texts(folder)
    run_here("prepare", write_schedule(folder), "--runs-dir", folder / "runs")
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of `original`, with a schedule that names the copy's texts; nothing of it is prepared."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    write_schedule(tmp_path)
    return tmp_path


def loaded(folder: Path, *overrides: str) -> Schedule:
    return load_schedule(str(folder / "mixed.yaml"), overrides, runs_dir=folder / "runs")


def test_every_source_is_prepared_and_then_the_mixture_which_later_schedules_find(original: Path) -> None:
    data, datasets = loaded(original).data, original / "runs/.datasets"
    [(mixture, _)] = prepared_data(data, datasets)
    manifest = verify_dataset(mixture)
    assert [(source.name, source.weight) for source in manifest.sources] == [("books", 3.0), ("code", 1.0)]
    assert list(prepared_data(loaded(original, "data.mixture.0.weight=2").data, datasets)) == []
    out, _ = run_here("prepare", original / "mixed.yaml", "--runs-dir", original / "runs", "--json")
    assert json.loads(out)["path"] == str(mixture)


def test_the_weights_of_stages_need_no_dataset_of_their_own(original: Path) -> None:
    data = loaded(original, "stages.0.mixture={code: 1}").data
    assert len(list(prepared_data(data, original / "runs/.datasets"))) == 1


def test_messages_about_a_source_name_its_entry(folder: Path) -> None:
    (folder / "code").rename(folder / "coda")
    missing = missing_data(loaded(folder).data, folder / "other")
    assert missing
    assert missing.startswith(f"data.mixture.1.source: '{folder}/code' does not exist; ")
    for command in (("validate",), ("run", "--dry-run")):
        _, err = run_here(*command, folder / "mixed.yaml", "--runs-dir", folder / "runs", expect=2)
        assert missing in err
    shutil.rmtree(folder / "coda")
    (folder / "code").mkdir()
    with pytest.raises(DataError, match=r"data\.mixture\.1\.include: no file of the folder .* matches '\*\*/\*'"):
        prepare_data(loaded(folder).data, folder / "other")


def test_no_source_is_prepared_while_the_text_of_another_is_missing(folder: Path, tmp_path: Path) -> None:
    (folder / "code").rename(folder / "coda")
    _, err = run_here("prepare", folder / "mixed.yaml", "--runs-dir", tmp_path / "new", expect=2)
    assert f"data.mixture.1.source: '{folder}/code' does not exist" in err
    assert not list(tmp_path.glob("new/.datasets/*/"))


def test_a_source_that_is_a_prepared_dataset_is_used_where_it_is(original: Path, tmp_path: Path) -> None:
    mixture = next(path for path, _ in prepared_data(loaded(original).data, original / "runs/.datasets"))
    first = read_dataset_manifest(mixture).sources[0].dataset(mixture)
    data = loaded(original, f"data.mixture.0.source={first}").data
    again = prepare_data(data, tmp_path)
    assert read_dataset_manifest(again).fingerprint == read_dataset_manifest(mixture).fingerprint
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("books")]


def write_spec(run: Path, schedule: Schedule, dataset: Path) -> None:
    """Writes the spec of the first stage, as a run that trains on `dataset` does."""
    attempt: dict[str, Any] = {"attempt": 1, "samples_seen": 0, "micro_batch_size": 1, "launched_at": 0.0}
    attempt |= {"initial": None, "resume": None, "directory": "", "dataset": str(dataset)}
    stage = run / "stages/0-a"
    stage.mkdir(parents=True)
    (stage / "spec.json").write_text(worker_spec(schedule, plan_stages(schedule)[0], **attempt).model_dump_json())


def test_clean_keeps_the_mixture_of_a_run_and_its_sources(original: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(original / "runs", runs)
    schedule = loaded(original)
    mixture = next(path for path, _ in prepared_data(schedule.data, original / "runs/.datasets"))
    write_spec(runs / "mixed", schedule, mixture)
    (runs / "mixed/schedule.yaml").write_text(schedule_yaml(schedule))
    used = DatasetUse.of(runs).runs
    assert sorted(name.partition("-")[0] for name in used) == ["books", "code", "mixture"]


def queued(runs: Path, schedule: Schedule) -> Path:
    """The directory of a run of `schedule` that has not begun."""
    directory = runs / "queued"
    directory.mkdir()
    (directory / "schedule.yaml").write_text(schedule_yaml(schedule))
    return directory


def test_clean_keeps_the_sources_of_a_run_whose_mixture_is_not_there_yet(original: Path, tmp_path: Path) -> None:
    shutil.copytree(original / "runs", tmp_path / "runs")
    queued(tmp_path / "runs", loaded(original))
    for mixture in tmp_path.glob("runs/.datasets/mixture-*"):
        shutil.rmtree(mixture)
    assert sorted(name.partition("-")[0] for name in DatasetUse.of(tmp_path / "runs").runs) == ["books", "code"]


def test_clean_keeps_every_dataset_if_the_mixture_of_a_run_is_damaged(original: Path, tmp_path: Path) -> None:
    shutil.copytree(original / "runs", tmp_path / "runs")
    directory = queued(tmp_path / "runs", loaded(original))
    [mixture] = tmp_path.glob("runs/.datasets/mixture-*")
    write_spec(directory, loaded(original), mixture)
    (mixture / "manifest.json").write_text("{")
    assert "queued" in DatasetUse.of(tmp_path / "runs").unknown


@pytest.mark.parametrize("key", ["data.source", "data.mixture.1.source"])
def test_a_mixture_is_no_text_to_train_on(original: Path, tmp_path: Path, key: str) -> None:
    [mixture] = original.glob("runs/.datasets/mixture-*")
    data = loaded(original).data
    if key == "data.source":
        data = data.model_copy(update={"mixture": [], "source": str(mixture)})
    else:
        inner = data.mixture[1].model_copy(update={"source": str(mixture)})
        data = data.model_copy(update={"mixture": [data.mixture[0], inner]})
    with pytest.raises(DataError, match=rf"{key}: '.*' is a mixture itself; name its sources \(books, code\) in"):
        prepare_data(data, tmp_path)


def test_an_evaluation_reads_a_sequence_of_each_source_at_least_and_the_warning_knows(original: Path) -> None:
    schedule = loaded(original, "evaluation.max_sequences=1")
    [warning] = dataset_warnings(schedule, DatasetSizes(True, 10**6, {}, 1000, 200_000, 261))
    assert "an evaluation reads 32 of them" in warning
