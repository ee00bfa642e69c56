"""Damage to any file of a run is detected and named; running again ends in the same bits."""

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from growctl.runs.verify import check, find_targets
from stages.checkpoint.manifest import read_manifest, verify_checkpoint
from stages.data.dataset import verify_dataset
from tests.growctl.runs import SCHEDULE, TEXT, final_hashes, finish, growctl, losses, write_schedule

SHORT = SCHEDULE.replace("train_steps: 30", "train_steps: 20").replace("train_steps: 60", "train_steps: 40")
SHORT = SHORT.replace("keep: 2", "keep: 2, keep_trunk: false")  # of a checkpoint every 10 steps


def run_in(folder: Path, schedule: Path, *overrides: str, expect: int = 0) -> str:
    """The output, on one line, of a run in `folder`/runs. Its ledger has the dataset's path relative to `folder`."""
    said = finish(growctl("run", schedule, *overrides, "--runs-dir", "runs", cwd=folder, fork=True), expect)
    return " ".join("".join(said).split())


@pytest.fixture(scope="module")
def trained_run(training: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(schedule, directory) of an undisturbed run."""
    folder = tmp_path_factory.mktemp("trained")
    schedule = write_schedule(folder, SHORT)
    run_in(folder, schedule)
    return schedule, folder / "runs/tiny"


@pytest.fixture
def copied(trained_run, tmp_path: Path) -> Path:
    """The directory of a copy of the run, in tmp_path/runs."""
    shutil.copytree(trained_run[1].parent, tmp_path / "runs")
    return tmp_path / "runs/tiny"


def end(run: Path) -> tuple[object, object]:
    return final_hashes(run), losses(run)


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :],
    "removed": lambda data: None,
}


def damage(path: Path, how: str) -> None:
    """Damages a file under one name; other hard links to it keep the old content."""
    changed = DAMAGES[how](path.read_bytes())
    path.unlink()
    if changed is not None:
        path.write_bytes(changed)


def directories(run: Path) -> Iterator[tuple[Path, Callable[[Path], object]]]:
    """Every checkpoint and dataset of a run, with the function that reads it."""
    for name in ("0-small/final", "0-small/step_00000010", "1-large/initial", "1-large/step_00000030", "1-large/final"):
        yield run / "stages" / name, verify_checkpoint
    yield next((run.parent / ".datasets").glob("*/manifest.json")).parent, verify_dataset


def test_damage_to_any_single_file_is_detected_and_named(trained_run, tmp_path):
    tried = 0
    for directory, verify in directories(trained_run[1]):
        names = [path.relative_to(directory) for path in directory.rglob("*") if path.is_file()]
        for name, how in product(names, DAMAGES):
            copy = tmp_path / f"{tried}-{directory.name}"
            shutil.copytree(directory, copy, copy_function=os.link)
            damage(copy / name, how)
            with pytest.raises(ValueError, match=r"is broken|is damaged|cannot be read|has no manifest") as error:
                verify(copy)
            assert str(copy) in str(error.value)
            assert str(name) in str(error.value)
            shutil.rmtree(copy)
            tried += 1
        verify(directory)
    assert tried > 200


def test_a_run_resumes_after_damage_to_several_files_at_once(trained_run, copied):
    large = copied / "stages/1-large"
    dataset = next((copied.parent / ".datasets").glob("*/manifest.json")).parent
    damage(large / "final/parameters/embedding.weight.safetensors", "flipped")
    damage(large / "step_00000030/manifest.json", "truncated")
    damage(large / "initial/manifest.json", "removed")
    damage(dataset / "train/00000.ds", "flipped")

    assert "resuming from step_00000020" in run_in(copied.parent.parent, trained_run[0])
    assert end(copied) == end(trained_run[1])
    aside = {"broken-final", "broken-step_00000030", "broken-initial"}
    assert {path.name for path in large.iterdir()} >= aside
    results = [check(target) for target in find_targets(copied.parent)]
    assert {result.path.name for result in results if result.whole is None} == aside | {f"broken-{dataset.name}"}
    assert all(result.whole is not False for result in results)


def test_a_stage_without_intact_checkpoints_restarts_from_the_stage_before(trained_run, copied):
    for path in copied.glob("stages/*/step_*/manifest.json"):
        damage(path, "flipped")
    damage(copied / "stages/0-small/final/manifest.json", "truncated")
    assert "resuming from the start (attempt 2)" in run_in(copied.parent.parent, trained_run[0])
    assert end(copied) == end(trained_run[1])
    again, before = (read_manifest(run / "stages/0-small/final").lineage for run in (copied, trained_run[1]))
    assert again.history[-1].hash == before.history[-1].hash


def test_a_dataset_that_cannot_be_prepared_identically_stops_the_run(trained_run, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    for number in range(20):
        (text / f"{number}.py").write_text(f"print({number})  # one of several lines to learn from\n" * 50)
    one_stage = "".join(line for line in SHORT.splitlines(keepends=True) if "name: large" not in line)
    schedule = write_schedule(tmp_path, one_stage.replace(str(TEXT), str(text)))
    run_in(tmp_path, schedule, "stages.0.train_steps=2")
    dataset = next((tmp_path / "runs/.datasets").glob("*/manifest.json")).parent
    damage(dataset / "validation/00000.ds", "truncated")
    (text / "0.py").write_text("print('changed since')\n" * 50)
    said = run_in(tmp_path, schedule, "stages.0.train_steps=2", expect=2)
    assert "was trained on a dataset with the fingerprint" in said
    assert "has changed. Restore the source, or start a separate run with --name" in said
    assert dataset.with_name(f"broken-{dataset.name}").is_dir()
