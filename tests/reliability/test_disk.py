"""Full and read-only disks: one message, no partial files, and the run resumes once there is space."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from growctl.ladder.load import load_schedule
from growctl.launch.resolve import machines_of
from growctl.run.requests import LadderRequest, RunRequest, check_space, remaining_bytes
from growctl.runs.directory import RunError
from stages.checkpoint.directory import begin_directory
from stages.checkpoint.disk_full import DiskFull, free_bytes, raise_when_full
from stages.checkpoint.files import write_file
from stages.data.dataset import verify_dataset
from stages.engine.memory import engine_checkpoint_bytes
from stages.metrics import MetricsWriter
from stages.spec import TrainSpec
from stages.stage_dir import StagePaths, staging_directory
from tests.growctl.runs import SCHEDULE, final_hashes, losses, run, run_here, write_schedule
from tests.stages.checkpoints import write_checkpoint

ONE_STAGE = "".join(line for line in SCHEDULE.splitlines(keepends=True) if "name: large" not in line)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system of 8 MB, in memory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "growctl-test", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"needs to mount a tmpfs: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """A file that fills the free space except for `leave` bytes."""
    filler = disk / "filler"
    filler.write_bytes(bytes(max(0, free_bytes(disk) - leave)))
    return filler


@pytest.mark.trains
def test_a_checkpoint_that_does_not_fit_stops_the_run_which_resumes_once_there_is_space(tmp_path, small_disk):
    schedule = write_schedule(tmp_path, ONE_STAGE)
    run("run", schedule, "--runs-dir", tmp_path / "runs")
    stage, expected = small_disk / "runs/tiny/stages/0-small", tmp_path / "runs/tiny"
    shutil.copytree(tmp_path / "runs/.datasets", small_disk / "runs/.datasets")
    spec = TrainSpec.model_validate_json((expected / "stages/0-small/spec.json").read_bytes())
    one = engine_checkpoint_bytes(spec.model, "adamw", spec.zero_stage, "fp32")
    filler = fill(small_disk, leave=2 * one)
    everything = ("run", schedule, "--runs-dir", small_disk / "runs")

    _, err = run(*everything, expect=2)
    assert "the checkpoints still to be written need about" in err
    assert not (small_disk / "runs/tiny").exists(), "rejected before anything is written"

    out, err = run(*everything, "checkpoint.check_space=false", expect=1)
    said = " ".join((out + err).split())
    assert f"{stage / 'step_00000020'} takes {one:,} bytes and only " in said
    assert "Free some space and run the same command again" in said
    assert "Traceback" not in said
    assert list(StagePaths(stage).checkpoints()) == [10]
    assert not list(stage.glob(".*incomplete"))

    filler.unlink()
    out, _ = run(*everything)
    assert "resuming from step_00000010" in " ".join(out.split())
    assert final_hashes(small_disk / "runs/tiny") == final_hashes(expected)
    assert losses(small_disk / "runs/tiny") == losses(expected)


WRITERS = {"torch": partial(torch.save, torch.zeros(25_000)), "files": lambda path: write_file(path, bytes(100_000))}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_checkpoint_that_fills_the_disk_is_removed_completely(small_disk, write):
    def save(staging: Path) -> None:
        fill(small_disk, leave=300_000)
        for number in range(10):
            write(staging / f"{number}.pt")

    staging = begin_directory(small_disk / "step_00000010")
    said = "full while .*the incomplete checkpoint was removed"
    with pytest.raises(DiskFull, match=said), raise_when_full(small_disk / "step_00000010", 1_000_000):
        save(staging)
    assert os.listdir(small_disk) == ["filler"]


def test_a_lost_rank_is_not_reported_as_a_full_disk(small_disk):
    def fail() -> None:
        write_file(begin_directory(small_disk / "step_00000010") / "shard", bytes(800_000))
        raise RuntimeError("Connection closed by peer")

    fill(small_disk, leave=1_500_000)
    with pytest.raises(RuntimeError, match="closed by peer"), raise_when_full(small_disk / "step_00000010", 1_000_000):
        fail()
    assert os.listdir(small_disk) == ["filler"]


def test_a_metrics_line_that_does_not_fit_is_reported(small_disk):
    metrics = MetricsWriter(small_disk / "metrics.jsonl", attempt=1)
    fill(small_disk, leave=0)
    with pytest.raises(DiskFull, match=f"the disk of {small_disk} is full"), raise_when_full(small_disk):
        metrics.write("train", 1, 0.0, note="x" * 100_000)


def test_a_run_compares_what_it_will_write_with_the_free_space_before_it_starts(tmp_path, monkeypatch):
    schedule = load_schedule(str(write_schedule(tmp_path)), [])
    request = LadderRequest.of(schedule, "tiny", tmp_path / "runs", None, with_controls=False).ladder
    stages, devices = tmp_path / "runs/tiny/stages", machines_of(schedule).on_each

    def needed() -> int:
        return remaining_bytes(request, stages.parent, devices)

    def check(free: int, *requests: RunRequest) -> None:
        monkeypatch.setattr("growctl.run.requests.free_bytes", lambda path: free)
        check_space(requests, tmp_path / "runs", devices)

    first = needed()
    check(first, request)
    with pytest.raises(RunError, match=r"about \d.* but only \d.* are free in .*checkpoint\.check_space=false"):
        check(first - 1, request)
    with pytest.raises(RunError, match=r"^tiny, tiny: the checkpoints still to be written"):
        check(first, request, request)
    write_checkpoint(stages / "0-small/step_00000010")
    assert (left := needed()) < first, "existing files are not written again"
    (stages / "0-small/step_00000010").rename(staging_directory(stages / "0-small/step_00000010"))
    assert needed() == left, "leftovers are removed first"


@pytest.mark.slow
def test_a_dataset_that_does_not_fit_is_removed_completely_and_prepared_once_there_is_space(tmp_path, small_disk):
    (tmp_path / "texts").mkdir()
    for number in range(40):
        (tmp_path / f"texts/{number}.txt").write_text(" ".join(map(str, range(1000 * number, 1000 * number + 2000))))
    datasets = small_disk / "runs/.datasets"
    values = (f"data.source={tmp_path / 'texts'}", "data.vocab_size=300", "data.validation_fraction=0.2")
    command = ("prepare", "quickstart", *values, "--runs-dir", small_disk / "runs")
    filler = fill(small_disk, leave=100_000)
    _, err = run_here(*command, expect=1)
    assert re.fullmatch(rf"growctl: the disk of {datasets}\S* is full; free some space and .*", err.splitlines()[-1])
    assert "Traceback" not in err
    assert not [path for path in datasets.glob("*") if path.is_dir()], "nothing incomplete is left"
    filler.unlink()
    run_here(*command)
    [dataset] = [path for path in datasets.iterdir() if path.is_dir()]
    verify_dataset(dataset)


def test_a_read_only_runs_directory_gives_one_message(tmp_path, small_disk):
    schedule = write_schedule(tmp_path, ONE_STAGE)
    (small_disk / "runs").mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    out, err = run("run", schedule, "--runs-dir", small_disk / "runs", expect=2)
    assert "Read-only file system" in err
    assert "Traceback" not in out + err
    assert len(err.splitlines()) == 1
