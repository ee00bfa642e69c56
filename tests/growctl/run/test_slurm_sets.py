"""Runs of a set as SLURM jobs. Nothing is trained: every job waits in the queue of a fake SLURM."""

import json
import subprocess
from pathlib import Path

import pytest

from growctl.runs.status import find_status
from tests.growctl.runs import SCHEDULE, run_here, write_schedule
from tests.growctl.runs.hand_made import HandMade

LAUNCH = (
    *("launch.cluster=slurm", "launch.nodes=[1,2]", "launch.devices=1", "launch.slurm.gpus=false"),
    "launch.slurm.job=stage",
)


@pytest.fixture
def queue(slurm: Path) -> Path:
    """A fake SLURM in which no job starts."""
    (slurm / "hold").touch()
    return slurm


def submit(folder: Path, *arguments: object, expect: int = 0) -> tuple[str, str]:
    schedule = write_schedule(folder)
    return run_here("run", schedule, *LAUNCH, "--seeds", "0,1,2", *arguments, "--runs-dir", folder, expect=expect)


def in_queue(slurm: Path) -> list[str]:
    """The jobs that are queued, in order."""
    jobs = sorted(path for path in slurm.iterdir() if path.is_dir())
    return [job.name for job in jobs if (job / "state").read_text() == "PENDING"]


def options(slurm: Path) -> list[dict[str, str]]:
    """The options of the jobs that are queued."""
    return [json.loads((slurm / job / "options.json").read_text()) for job in in_queue(slurm)]


@pytest.mark.slow
def test_each_run_is_a_chain_of_jobs_and_waits_for_an_earlier_run_if_there_is_a_limit(tmp_path, queue):
    out, err = submit(tmp_path, "launch.slurm.array_limit=2")
    assert err == ""
    assert [(job["job-name"], job["nodes"], job.get("dependency")) for job in options(queue)] == [
        ("tiny-seed-0.small", "1", None),
        ("tiny-seed-0.large", "2", "afterok:101"),
        ("tiny-seed-1.small", "1", None),
        ("tiny-seed-1.large", "2", "afterok:103"),
        ("tiny-seed-2.small", "1", "afterany:101:102"),
        ("tiny-seed-2.large", "2", "afterok:105"),
    ]
    assert options(queue)[1]["kill-on-invalid-dep"] == "yes"
    assert "job 105: tiny-seed-2.small (1 machine x 1, behind 101, 102); log: " in out
    found = {run.name: run for run in find_status(tmp_path)}
    assert [(run.group, run.state) for run in found.values()] == [("tiny", "not started")] * 3
    assert found["tiny-seed-1"].jobs == {"tiny-seed-1.small": "103", "tiny-seed-1.large": "104"}


@pytest.mark.slow
def test_runs_with_jobs_are_left_out_and_one_that_was_cancelled_is_submitted_again_by_itself(tmp_path, queue):
    submit(tmp_path)
    subprocess.run(["scancel", "103", "104"], check=True)
    out, _ = submit(tmp_path)
    assert "tiny-seed-0: this run already has jobs: 101 (tiny-seed-0.small, PENDING), 102 (tiny-seed" in out
    assert "cancel them first: scancel 105 106" in out
    assert in_queue(queue) == ["101", "102", "105", "106", "107", "108"]
    [again] = find_status(tmp_path, ["tiny-seed-1"])
    assert again.jobs == {"tiny-seed-1.small": "107", "tiny-seed-1.large": "108"}


@pytest.mark.slow
def test_if_slurm_rejects_a_job_those_before_it_are_cancelled(tmp_path, queue, monkeypatch):
    monkeypatch.setenv("FAKE_SLURM_REFUSE", "large")
    out, err = submit(tmp_path, expect=1)
    assert in_queue(queue) == []
    said = "tiny-seed-1: failed: sbatch rejected the job tiny-seed-1.large: sbatch: error: Batch job submissi"
    assert out.count(said) == 1
    assert err.startswith("growctl: 3 of 3 runs failed: tiny-seed-0, tiny-seed-1, tiny-seed-2; ")
    monkeypatch.delenv("FAKE_SLURM_REFUSE")
    submit(tmp_path)
    assert len(in_queue(queue)) == 6


@pytest.mark.slow
def test_no_second_chain_of_jobs_is_submitted_where_the_list_of_the_first_is_damaged(tmp_path, queue):
    submit(tmp_path)
    (tmp_path / "tiny-seed-0/slurm/jobs.json").write_text("{")
    out, _ = submit(tmp_path, expect=1)
    assert "jobs.json, which lists the jobs of this run, cannot be read: Invalid JSON: EOF" in " ".join(out.split())
    assert "errors.pydantic.dev" not in out
    assert len(in_queue(queue)) == 6


def test_a_finished_run_gets_no_jobs_and_one_with_a_finished_stage_only_those_of_the_rest(tmp_path, queue):
    for seed, stages in ((0, ["0-small"]), (1, ["0-small", "1-large"])):
        run = HandMade(tmp_path, f"tiny-seed-{seed}", text=SCHEDULE.replace("seed: 3", f"seed: {seed}"))
        for stage in stages:
            run.finishes(stage, 30)
        (run.directory / ".run_set.json").write_text(json.dumps({"group": "tiny", "overrides": {}}))
    submit(tmp_path)
    names = [job["job-name"] for job in options(queue)]
    assert names == ["tiny-seed-0.large", "tiny-seed-2.small", "tiny-seed-2.large"]


@pytest.mark.slow
def test_the_scripts_of_a_dry_run_are_those_that_are_submitted(tmp_path, queue):
    out, _ = submit(tmp_path, "--dry-run")
    assert in_queue(queue) == []
    assert out.count("-m stages.train.worker") == 6
    submit(tmp_path)
    for job, before in (("101", None), ("104", "103")):
        script = (queue / job / "script.sh").read_text()
        assert script.replace(f"afterok:{before}", "afterok:ID-OF-tiny-seed-1.small") in out
