"""The datasets of a mixture: prepared, found again, missing, changed, and kept by `clean`."""

import json
import shutil
from pathlib import Path

import pytest

from growctl.ladder.datasets import DatasetSizes, dataset_warnings
from growctl.ladder.load import load_schedule
from growctl.run.requests import schedule_yaml
from growctl.runs.storage import DatasetUse
from growctl.schedule.blocks import Schedule
from growctl.schedule.sources import missing_data, prepare_data, prepared_data
from stages.data.dataset import read_dataset_manifest, verify_dataset
from stages.data.errors import DataError
from tests.growctl.ladder import spec_of
from tests.growctl.mixed import write_schedule, write_texts
from tests.growctl.runs import run_here


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, mixed.yaml, and the mixture prepared in `runs`."""
    folder = tmp_path_factory.mktemp("mixed")
    write_texts(folder)
    run_here("prepare", write_schedule(folder), "--runs-dir", folder / "runs")
    return folder


def loaded(folder: Path, *overrides: str) -> Schedule:
    return load_schedule(str(folder / "mixed.yaml"), overrides, runs_dir=folder / "runs")


def mixture_in(folder: Path) -> Path:
    [mixture] = folder.glob("runs/.datasets/mixture-*")
    return mixture


def test_every_source_is_prepared_and_then_the_mixture_which_later_schedules_find(original: Path) -> None:
    datasets, mixture = original / "runs/.datasets", mixture_in(original)
    manifest = verify_dataset(mixture)
    assert [(source.name, source.weight) for source in manifest.sources] == [("books", 3.0), ("code", 1.0)]
    for override, found in (
        ("seed=1", [mixture]),
        ("stages.0.mixture={code: 1}", [mixture]),
        ("data.mixture.0.weight=2", []),
    ):
        assert [path for path, _ in prepared_data(loaded(original, override).data, datasets)] == found
    out, _ = run_here("prepare", original / "mixed.yaml", "--runs-dir", original / "runs", "--json")
    assert json.loads(out)["path"] == str(mixture)


def test_a_missing_source_is_named_by_its_entry_before_any_other_is_prepared(tmp_path: Path) -> None:
    write_texts(tmp_path)
    path, given = write_schedule(tmp_path), ("--runs-dir", tmp_path / "new")
    shutil.rmtree(tmp_path / "code")
    missing = missing_data(loaded(tmp_path).data, tmp_path / "new")
    assert missing
    assert missing.startswith(f"data.mixture.1.source: '{tmp_path}/code' does not exist; ")
    for command in (("validate",), ("run", "--dry-run"), ("prepare",)):
        _, err = run_here(*command, path, *given, expect=2)
        assert missing in err
    (tmp_path / "code").mkdir()
    with pytest.raises(DataError, match=r"data\.mixture\.1\.include: no file of the folder .* matches '\*\*/\*'"):
        prepare_data(loaded(tmp_path).data, tmp_path / "empty")
    assert not list(tmp_path.glob("new/.datasets/*/"))


def test_a_source_that_is_a_prepared_dataset_is_used_where_it_is(original: Path, tmp_path: Path) -> None:
    manifest = read_dataset_manifest(mixture_in(original))
    first = manifest.sources[0].dataset(mixture_in(original))
    again = prepare_data(loaded(original, f"data.mixture.0.source={first}").data, tmp_path)
    assert read_dataset_manifest(again).fingerprint == manifest.fingerprint
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("books")]


@pytest.mark.parametrize("case", ["begun", "without its mixture", "with a damaged mixture"])
def test_clean_keeps_the_sources_of_a_run_and_everything_if_its_mixture_is_damaged(
    original: Path, tmp_path: Path, case: str
) -> None:
    runs, schedule = tmp_path / "runs", loaded(original)
    shutil.copytree(original / "runs", runs)
    stage, mixture = runs / "mixed/stages/0-a", mixture_in(tmp_path)
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


@pytest.mark.parametrize("key", ["data.source", "data.mixture.1.source"])
def test_a_mixture_is_no_text_to_train_on(original: Path, tmp_path: Path, key: str) -> None:
    mixture, data = str(mixture_in(original)), loaded(original).data
    if key == "data.source":
        data = data.model_copy(update={"mixture": [], "source": mixture})
    else:
        inner = data.mixture[1].model_copy(update={"source": mixture})
        data = data.model_copy(update={"mixture": [data.mixture[0], inner]})
    with pytest.raises(DataError, match=rf"{key}: '.*' is a mixture itself; name its sources \(books, code\)"):
        prepare_data(data, tmp_path)


def test_an_evaluation_reads_a_sequence_of_each_source_at_least_and_the_warning_knows(original: Path) -> None:
    schedule = loaded(original, "evaluation.max_sequences=1")
    [warning] = dataset_warnings(schedule, DatasetSizes(True, 10**6, {}, 1000, 200_000, 261))
    assert "an evaluation reads 32 of them" in warning
