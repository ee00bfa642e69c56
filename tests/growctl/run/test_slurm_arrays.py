"""Runs of a set as SLURM job arrays. Nothing is trained: every job waits in the queue of a fake SLURM."""

import errno
import json
import subprocess
from pathlib import Path

import pytest

from growctl.run import job_part
from growctl.run.grid import grid
from growctl.run.sets import set_requests
from growctl.run.slurm_jobs import Bundle, Chain, bundles
from growctl.runs.status import find_status
from growctl.runs_dir import RunPaths
from stages.checkpoint.files import write_file
from tests.growctl.runs import CONTROL, SCHEDULE, run_here, write_schedule
from tests.growctl.runs.hand_made import HandMade

LAUNCH = (
    *("launch.cluster=slurm", "launch.nodes=[1,2]", "launch.devices=1", "launch.slurm.gpus=false"),
    "launch.slurm.job=stage",
)
SEEDS = ["tiny-seed-0", "tiny-seed-1", "tiny-seed-2"]


@pytest.fixture
def queue(slurm: Path) -> Path:
    """A fake SLURM in which no job starts."""
    (slurm / "hold").touch()
    return slurm


def submit(folder: Path, *arguments: object, expect: int = 0, text: str = SCHEDULE) -> tuple[str, str]:
    schedule = write_schedule(folder, text)
    return run_here("run", schedule, *LAUNCH, "--seeds", "0,1,2", *arguments, "--runs-dir", folder, expect=expect)


def in_queue(slurm: Path) -> list[str]:
    """The jobs that are queued, in order."""
    jobs = sorted(path for path in slurm.iterdir() if path.is_dir())
    return [job.name for job in jobs if (job / "state").read_text() == "PENDING"]


def options(slurm: Path, job: str) -> dict[str, str]:
    return json.loads((slurm / job / "options.json").read_text())


def jobs(folder: Path, name: str) -> dict[str, str]:
    return json.loads(RunPaths(folder / name).jobs.read_text())


def bundled(folder: Path, *overrides: str) -> list[Bundle]:
    """The bundles of the runs that differ by the seed."""
    points = grid([*LAUNCH, *overrides])
    requests = set_requests(str(write_schedule(folder)), points, folder, name="tiny")
    return bundles([Chain.of(request) for request in requests])


def test_alike_runs_are_one_array_per_job_and_each_task_waits_for_its_own_run(tmp_path, queue):
    out, err = submit(tmp_path, "launch.slurm.array_limit=2")
    assert err == ""
    assert in_queue(queue) == ["101_0", "101_1", "101_2", "102_0", "102_1", "102_2"]
    small, large = options(queue, "101_0"), options(queue, "102_0")
    assert (small["job-name"], small["array"], small["nodes"]) == ("tiny.small", "0-2%2", "1")
    assert (large["job-name"], large["array"], large["nodes"]) == ("tiny.large", "0-2%2", "2")
    assert "dependency" not in small
    assert large["dependency"] == "aftercorr:101"
    assert large["kill-on-invalid-dep"] == "yes"
    assert jobs(tmp_path, "tiny-seed-1") == {"tiny-seed-1.small": "101_1", "tiny-seed-1.large": "102_1"}
    assert "3 runs as job arrays, task 0 first: tiny-seed-0, tiny-seed-1, tiny-seed-2" in out
    assert "array 101: tiny.small (3 jobs, each on 1 machine x 1; at most 2 at once); logs: 101_*.out in each" in out
    assert "array 102: tiny.large (3 jobs, each on 2 machines x 1; at most 2 at once; each after its job of tiny" in out
    assert f"To see their progress: growctl status --runs-dir {tmp_path}\n" in out
    task = (tmp_path / ".slurm/tiny/101_1_submitted.pkl").read_bytes()
    assert b"tiny-seed-1" in task
    assert b"tiny-seed-0" not in task


def test_a_run_finds_its_jobs_and_logs_in_its_own_directory(tmp_path, queue):
    submit(tmp_path)
    (tmp_path / ".slurm/tiny/102_1_0_log.out").write_text("trained\n")
    assert (tmp_path / "tiny-seed-1/slurm/102_1_0_log.out").read_text() == "trained\n"
    found = {run.name: run for run in find_status(tmp_path)}
    assert {run.group for run in found.values()} == {"tiny"}
    assert found["tiny-seed-1"].state == "not started"
    assert found["tiny-seed-1"].jobs == {"tiny-seed-1.small": "101_1", "tiny-seed-1.large": "102_1"}
    assert options(queue, "101_0")["array"] == "0-2%3"  # all at once
    out, _ = run_here("status", "tiny-seed-1", "--runs-dir", tmp_path)
    assert "check their state with: squeue --jobs=101_1,102_1" in " ".join(out.split())


def test_controls_are_arrays_behind_the_last_of_the_ladders(tmp_path, queue):
    submit(tmp_path, text=SCHEDULE + CONTROL)
    assert [options(queue, f"{number}_2")["job-name"] for number in range(101, 105)] == [
        *("tiny.small", "tiny.large"),
        "tiny-control-tokenformer-scratch.large",
        "tiny-control-transformer-scratch-0.5x.large",
    ]
    assert [options(queue, f"{number}_2")["dependency"] for number in (103, 104)] == ["aftercorr:102"] * 2
    assert jobs(tmp_path, "tiny-seed-2")["tiny-seed-2-control-tokenformer-scratch.large"] == "103_2"


def test_runs_with_jobs_are_left_out_and_one_that_was_cancelled_is_submitted_again_by_itself(tmp_path, queue):
    submit(tmp_path)
    subprocess.run(["scancel", "101_1", "102_1"], check=True)
    out, _ = submit(tmp_path)
    assert "tiny-seed-0: this run already has jobs: 101_0 (tiny-seed-0.small, PENDING), 102_0 (tiny-seed" in out
    assert "cancel them first: scancel 101_2 102_2" in out
    assert in_queue(queue) == ["101_0", "101_2", "102_0", "102_2", "103", "104"]
    assert options(queue, "104")["dependency"] == "afterok:103"
    assert jobs(tmp_path, "tiny-seed-1") == {"tiny-seed-1.small": "103", "tiny-seed-1.large": "104"}
    assert (tmp_path / "tiny-seed-1/slurm/103_submitted.pkl").exists()


def test_if_slurm_rejects_an_array_those_before_it_are_cancelled(tmp_path, queue, monkeypatch):
    monkeypatch.setenv("FAKE_SLURM_REFUSE", "large")
    out, err = submit(tmp_path, expect=1)
    assert in_queue(queue) == []
    assert f"{', '.join(SEEDS)}: failed: sbatch rejected the job tiny.large: sbatch: error: Batch job submissi" in out
    assert err == f"growctl: 3 of 3 runs failed: {', '.join(SEEDS)}; run the same command again to try again\n"
    monkeypatch.delenv("FAKE_SLURM_REFUSE")
    submit(tmp_path)
    assert len(in_queue(queue)) == 6


def test_jobs_that_cannot_be_recorded_are_cancelled(tmp_path, queue, monkeypatch):
    def write(path: Path, content: bytes) -> None:
        if path.name == "jobs.json" and path.parent.parent.name == "tiny-seed-1":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_file(path, content)

    monkeypatch.setattr("growctl.run.slurm_jobs.write_file", write)
    submit(tmp_path, expect=1)
    assert [job.name for job in queue.iterdir() if job.is_dir()] != []
    assert in_queue(queue) == []


def test_without_slurm_every_run_fails_and_nothing_is_written(tmp_path, monkeypatch):
    schedule = write_schedule(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    out, err = run_here("run", schedule, *LAUNCH, "--seeds", "0,1", "--runs-dir", tmp_path / "runs", expect=1)
    assert "tiny-seed-1: failed: launch.cluster = 'slurm': needs sbatch" in out
    assert err.startswith("growctl: 2 of 2 runs failed: ")
    assert not (tmp_path / "runs").exists()


def test_a_finished_run_is_left_out_and_one_with_a_finished_stage_keeps_a_chain_of_its_own(tmp_path, queue):
    for seed, stages in ((0, ["0-small"]), (3, ["0-small", "1-large"])):
        run = HandMade(tmp_path, f"tiny-seed-{seed}", text=SCHEDULE.replace("seed: 3", f"seed: {seed}"))
        for stage in stages:
            run.finishes(stage, 30)
        (run.directory / ".run_set.json").write_text(json.dumps({"group": "tiny", "overrides": {}}))
    found = bundled(tmp_path, "seed=range(0,4)")
    assert [bundle.names for bundle in found if bundle.jobs] == [["tiny-seed-0"], ["tiny-seed-1", "tiny-seed-2"]]
    assert [job.name for bundle in found for job in bundle.jobs] == ["tiny-seed-0.large", "tiny.small", "tiny.large"]


@pytest.mark.parametrize(
    ("swept", "tasks"),
    [
        ("launch.slurm.time_limit=10h,20h", [1, 1]),
        ("launch.slurm.max_requeues=1,2", [1, 1]),
        ("launch.slurm.setup=[],[module load cuda]", [1, 1]),
        ("launch.slurm.array_limit=1,2", [1, 1]),
        ("launch.nodes=1,2,[1,1]", [2, 1]),
        ("model.num_layers=1,2", [2]),
        ("launch.environment={A: b},{A: c}", [2]),
    ],
)
def test_runs_share_arrays_only_if_they_ask_slurm_for_the_same(tmp_path, swept, tasks):
    assert [bundle.tasks for bundle in bundled(tmp_path, swept)] == tasks


def test_more_runs_than_an_array_may_have_are_several_arrays(tmp_path, monkeypatch):
    monkeypatch.setattr("growctl.run.slurm_jobs.LARGEST_ARRAY", 2)
    assert [bundle.names for bundle in bundled(tmp_path, "seed=0,1,2")] == [SEEDS[:2], SEEDS[2:]]


def test_a_dry_run_shows_the_scripts_of_the_arrays_and_writes_nothing(tmp_path, queue):
    schedule = write_schedule(tmp_path)
    runs = tmp_path / "runs"
    out, _ = run_here("sweep", schedule, *LAUNCH, "seed=0,1,2", "--dry-run", "--runs-dir", runs)
    assert "# 3 runs as job arrays, task 0 first: tiny-seed-0, tiny-seed-1, tiny-seed-2\n" in out
    assert f"# array tiny.large: sbatch {runs}/.slurm/tiny/JOB-ID_submission.sh\n" in out
    assert "#SBATCH --array=0-2%3\n" in out
    assert "#SBATCH --dependency=aftercorr:ID-OF-tiny.small\n" in out
    assert f"#SBATCH --output={runs}/.slurm/tiny/%A_%a_0_log.out\n" in out
    assert (runs.exists(), in_queue(queue)) == (False, [])


def test_the_script_of_a_dry_run_is_the_one_that_is_submitted(tmp_path, queue):
    schedule = write_schedule(tmp_path)
    out, _ = run_here("run", schedule, *LAUNCH, "--seeds", "0,1,2", "--dry-run", "--runs-dir", tmp_path)
    submit(tmp_path)
    for job in ("101_0", "102_0"):
        script = (queue / job / "script.sh").read_text().replace("aftercorr:101", "aftercorr:ID-OF-tiny.small")
        assert script in out


def test_a_task_asks_for_its_own_state_and_not_for_that_of_its_array(monkeypatch):
    asked: list[str] = []

    def states(ids: list[str]) -> dict[str, str]:
        asked.extend(ids)
        return {"101_2": "RUNNING"}

    for name, value in (("JOB_ID", "105"), ("ARRAY_JOB_ID", "101"), ("ARRAY_TASK_ID", "2")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(job_part, "job_states", states)
    assert job_part._kept()
    assert asked == ["101_2"]
