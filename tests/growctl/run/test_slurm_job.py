"""Runs as SLURM jobs on a fake cluster: chains, time-limit warnings, requeues and messages."""

import os
import pickle
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from submitit.core.utils import UncompletedJobError

from growctl.ladder.load import load_schedule
from growctl.launch.machines import LaunchError
from growctl.launch.resolve import machines_of
from growctl.launch.slurm import check_slurm
from growctl.run import slurm_jobs as job_module
from growctl.run.requests import LadderRequest, RunFailed
from growctl.run.slurm_jobs import JobPart, _check_no_jobs, plan_jobs
from growctl.runs.directory import RunError
from growctl.runs_dir import RunPaths
from growctl.schedule.launch_block import LaunchBlock
from model.errors import Failure
from tests.growctl.runs import (
    CONTROL,
    SCHEDULE,
    final_hashes,
    held,
    losses,
    paused_rank,
    reached,
    run,
    run_here,
    wait_for,
    workers_of,
    write_schedule,
)
from tests.reliability.faults.sitecustomize import VARIABLE

LAUNCH = (
    *("launch.cluster=slurm", "launch.nodes=2", "launch.devices=1", "launch.slurm.gpus=false"),
    "launch.environment={GLOO_SOCKET_IFNAME: lo, OMP_NUM_THREADS: '1'}",
)


def job_file(slurm: Path, number: int, name: str) -> str:
    path = slurm / str(number) / name
    return path.read_text() if path.exists() else ""


def tasks(slurm: Path, number: int) -> list[int]:
    return [int(pid) for pid in job_file(slurm, number, "tasks").split()]


def wait_for_state(slurm: Path, number: int, *states: str) -> None:
    wait_for(lambda: job_file(slurm, number, "state") in states)


def scancel(*arguments: object) -> None:
    subprocess.run(["scancel", *map(str, arguments)], check=True)


def test_jobs_that_are_preempted_cancelled_and_out_of_time_end_in_the_same_bits(
    two_ranks, runs_dir, slurm, tmp_path, monkeypatch
):
    schedule, done = two_ranks
    small, large = (runs_dir / "tiny/stages" / name for name in ("0-small", "1-large"))
    logs = runs_dir / "tiny/slurm"

    # one job per stage; pre-emption sends SIGTERM to all processes of the job and is not counted
    chain = [*LAUNCH, "launch.slurm.job=stage", "launch.slurm.max_requeues=0", "--runs-dir", runs_dir]
    monkeypatch.setenv(VARIABLE, paused_rank(tmp_path / ".marks", "0-small"))
    out, _ = run("run", schedule, *chain)
    assert f"job 101: tiny.small (2 machines x 1); log: {logs}/101_0_log.out" in out
    assert "job 102: tiny.large (2 machines x 1, after tiny.small)" in out
    assert "growctl status tiny" in out
    wait_for(reached(small / "metrics.jsonl", "train", 1))
    with held(tasks(slurm, 101), small):
        _, err = run_here("run", schedule, *chain, expect=2)
        assert "this run already has jobs: 101 (tiny.small, RUNNING), 102 (tiny.large, PENDING)" in err
        assert "scancel 101 102" in err
        for batch in ([], ["--batch"]):
            scancel("--signal=TERM", *batch, 101)
    wait_for_state(slurm, 101, "COMPLETED")
    assert job_file(slurm, 101, "starts") == "2"
    assert "this job is preempted" in (logs / "101_0_log.out").read_text()

    # a cancelled job stays cancelled
    wait_for_state(slurm, 102, "RUNNING")
    wait_for(lambda: len(workers_of(runs_dir)) > 0)
    scancel(102)
    wait_for(lambda: not (slurm / "102/follower").exists())
    assert workers_of(runs_dir) == []
    assert (job_file(slurm, 102, "state"), job_file(slurm, 102, "starts")) == ("CANCELLED", "1")

    # one job for the remaining stages; it reaches its time limit, which is counted
    monkeypatch.setenv(VARIABLE, paused_rank(tmp_path / ".marks", "1-large", steps=11))
    out, _ = run("run", schedule, *LAUNCH, "launch.slurm.time_limit=4m", "--runs-dir", runs_dir)
    assert "job 103: tiny (2 machines x 1); log: " in out
    wait_for(reached(large / "metrics.jsonl", "checkpoint", 10))
    with held(tasks(slurm, 103), large):
        scancel("--signal=USR2", "--batch", 103)
    wait_for_state(slurm, 103, "COMPLETED", "FAILED")
    log = (logs / "103_0_log.out").read_text()
    assert "this job is timed-out" in log
    assert "99 remaining timeouts" in log
    assert "stage large: resuming from step_" in log
    assert "tiny: done" in log
    assert job_file(slurm, 103, "starts") == "2"
    assert final_hashes(runs_dir / "tiny") == final_hashes(done / "tiny")
    assert losses(runs_dir / "tiny") == losses(done / "tiny")

    out, _ = run_here("run", schedule, *LAUNCH, "--runs-dir", runs_dir)
    assert "tiny: done; there is nothing to submit" in out


def test_a_failed_job_reports_why_and_the_jobs_behind_it_do_not_start(two_ranks, tmp_path, slurm):
    source = tmp_path / "texts"
    source.mkdir()
    (source / "some.py").write_text("too short\n")
    launch = [*LAUNCH, f"data.source={source}", "launch.slurm.job=stage", "--runs-dir", tmp_path / "runs"]
    run("run", two_ranks[0], *launch)
    wait_for_state(slurm, 102, "CANCELLED")
    assert job_file(slurm, 101, "state") == "FAILED"
    assert job_file(slurm, 102, "starts") == ""
    log = (tmp_path / "runs/tiny/slurm/101_0_log.out").read_text()
    assert "growctl: " in log
    assert "Traceback" not in log
    run("run", two_ranks[0], *launch, "seed=5")  # nothing was trained, so the schedule may change


def test_if_slurm_rejects_a_job_the_jobs_before_it_are_cancelled(tmp_path, slurm, monkeypatch):
    monkeypatch.setenv("FAKE_SLURM_REFUSE", "large")
    (slurm / "hold").touch()
    launch = [*LAUNCH, "launch.slurm.job=stage", "--runs-dir", tmp_path / "runs"]
    _, err = run_here("run", write_schedule(tmp_path), *launch, expect=1)
    assert "sbatch rejected the job tiny.large: sbatch: error: Batch job submission failed: Invalid account" in err
    assert err.count("Invalid account") == 1
    assert err.endswith("; `sinfo` shows whether SLURM answers here, and its partitions\n")
    assert "Traceback" not in err
    assert job_file(slurm, 101, "state") == "CANCELLED"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("launch.devices=auto", "launch.devices = 'auto': a login node cannot count"),
        ("launch.nodes=3", "must be a multiple of 3, for 3 devices of stage small (3 machines x 1)"),
    ],
)
def test_invalid_job_settings_are_rejected_before_anything_is_written(tmp_path, slurm, setting, message):
    _, err = run_here("run", write_schedule(tmp_path), *LAUNCH, setting, "--runs-dir", tmp_path / "runs", expect=2)
    assert message in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"warn_before": "90s", "time_limit": "2m"}, "launch.slurm.warn_before = 90 s: must be above 0, 65535 at most"),
        ({"warn_before": "20h"}, "launch.slurm.warn_before = 72000 s: must be above 0, 65535 at most"),
        ({"partition": "gpu\nreboot"}, "launch.slurm.partition = 'gpu\\nreboot': must be one line of text"),
        ({"options": {"comment": "a\nb"}}, "launch.slurm.options.comment = 'a\\nb': must be one line of text"),
    ],
)
def test_invalid_job_options_are_named(keys, message):
    with pytest.raises(LaunchError) as error:
        check_slurm(LaunchBlock.model_validate({"slurm": keys}))
    assert str(error.value).startswith(message)


def test_a_machine_without_slurm_gives_an_error_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    _, err = run_here("run", write_schedule(tmp_path), *LAUNCH, "--runs-dir", tmp_path / "runs", expect=2)
    assert "launch.cluster = 'slurm': needs sbatch and squeue and srun and scontrol and scancel on PATH" in err
    assert not (tmp_path / "runs").exists()


def planned(folder: Path, *overrides: str) -> list[tuple[str, int, int | None, str | None]]:
    """(name, machines, last stage, dependency) of every job of a ladder with two controls."""
    schedule = load_schedule(str(write_schedule(folder, SCHEDULE + CONTROL)), [*LAUNCH, *overrides])
    request = LadderRequest.of(schedule, "tiny", folder / "runs", None, True)
    requests = request.checked(machines_of(schedule))
    return [(job.name, job.nodes, job.last_stage, job.after) for job in plan_jobs(request, requests)]


def test_a_ladder_is_a_job_as_large_as_its_largest_stage_and_controls_are_jobs_behind_it(tmp_path):
    assert planned(tmp_path, "launch.nodes=[1,2]") == [
        ("tiny", 2, None, None),
        ("tiny-control-tokenformer-scratch", 2, None, "tiny"),
        ("tiny-control-transformer-scratch-0.5x", 2, None, "tiny"),
    ]


def test_a_stage_is_a_job_with_its_own_machines_behind_the_stage_before(tmp_path):
    assert planned(tmp_path, "launch.nodes=[1,2]", "launch.slurm.job=stage") == [
        ("tiny.small", 1, 0, None),
        ("tiny.large", 2, 1, "tiny.small"),
        ("tiny-control-tokenformer-scratch.large", 2, 0, "tiny.large"),
        ("tiny-control-transformer-scratch-0.5x.large", 2, 0, "tiny.large"),
    ]


def test_a_release_belongs_to_the_job_of_its_stage(tmp_path):
    released = ("releases=all", "launch.nodes=[1,2]")
    assert planned(tmp_path, *released, "launch.slurm.job=stage") == planned(
        tmp_path, *released[1:], "launch.slurm.job=stage"
    )
    schedule = load_schedule(str(tmp_path / "tiny.yaml"), [*LAUNCH, *released, "launch.slurm.job=stage"])
    request = LadderRequest.of(schedule, "tiny", tmp_path / "runs", None, False)
    [first, _] = plan_jobs(request, [request.ladder])
    assert [plan.name for plan in first.stages] == ["small", "small/release"]


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A JobPart that runs as if in a job; its `requeued` records each requeue."""
    schedule = load_schedule(str(write_schedule(tmp_path)), LAUNCH)
    part = JobPart(LadderRequest.of(schedule, "tiny", tmp_path / "runs", None, True), "tiny", None)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    requeued: list[str] = []
    signal.signal(signal.SIGUSR2, lambda number, frame: requeued.append("requeued"))
    monkeypatch.setenv("SLURM_JOB_ID", "101")
    yield SimpleNamespace(part=part, requeued=requeued)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def interrupt(job: Any, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, states: dict[str, str]) -> None:
    """Runs the job's part until a signal stops it; `requeued` then starts with `closed`."""

    def training() -> None:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            job.requeued.append("closed")

    monkeypatch.setattr(job.part, "_run", training)
    monkeypatch.setattr(job_module, "job_states", states if callable(states) else lambda ids: states)
    job.part()


def test_a_warned_job_closes_everything_before_it_is_requeued(job, monkeypatch):
    interrupt(job, monkeypatch, signal.SIGUSR2, {})
    assert job.requeued == ["closed", "requeued"]


def test_a_job_that_timed_out_too_often_reports_it(job, monkeypatch, capsys):
    def refuse(number: int, frame: object) -> None:
        raise UncompletedJobError("Job not requeued because: timed-out too many times.")

    signal.signal(signal.SIGUSR2, refuse)
    with pytest.raises(SystemExit) as end:
        interrupt(job, monkeypatch, signal.SIGUSR2, {})
    assert (end.value.code, job.requeued) == (1, ["closed"])
    assert capsys.readouterr().err == (
        "growctl: this job has reached its time limit and was not queued again: launch.slurm.max_requeues = "
        "100; submit the run again to resume\n"
    )


@pytest.mark.parametrize(
    "error",
    [
        subprocess.CalledProcessError(1, ["scontrol", "requeue", "101"]),
        subprocess.TimeoutExpired(["scontrol", "requeue", "101"], 60),
    ],
)
def test_a_job_that_a_busy_slurm_does_not_requeue_reports_it_and_is_no_bug(job, monkeypatch, capsys, error):
    def busy(number: int, frame: object) -> None:
        raise error

    signal.signal(signal.SIGUSR2, busy)
    with pytest.raises(SystemExit) as end:
        interrupt(job, monkeypatch, signal.SIGUSR2, {})
    assert (end.value.code, job.requeued) == (1, ["closed"])
    said = f"growctl: SLURM could not requeue this job: {str(error).rstrip('.')}; submit the run again to resume\n"
    assert capsys.readouterr().err == said


def test_a_preempted_job_is_requeued(job, monkeypatch):
    interrupt(job, monkeypatch, signal.SIGTERM, {"101": "RUNNING"})
    assert job.requeued == ["closed", "requeued"]


def test_a_terminated_job_retries_a_busy_slurm(job, monkeypatch):
    monkeypatch.setattr(job_module, "ASK_AGAIN_SECONDS", (0.0, 0.0))
    answers: Iterator[Any] = iter([Failure("squeue failed: timed out"), {"101": "RUNNING"}])

    def busy(ids: list[str]) -> dict[str, str]:
        answer = next(answers)
        if isinstance(answer, Failure):
            raise answer
        return answer

    states: Any = busy
    interrupt(job, monkeypatch, signal.SIGTERM, states)
    assert job.requeued == ["closed", "requeued"]


def test_a_cancelled_job_is_not_requeued(job, monkeypatch):
    with pytest.raises(SystemExit) as end:
        interrupt(job, monkeypatch, signal.SIGTERM, {"101": "COMPLETING"})
    assert (end.value.code, job.requeued) == (143, ["closed"])


@pytest.mark.parametrize(("error", "code"), [(RunFailed("no luck"), 1), (LaunchError("no sense"), 2)])
def test_a_job_ends_with_growctls_exit_code_and_message(job, monkeypatch, capsys, error, code):
    def fail() -> None:
        raise error

    monkeypatch.setattr(job.part, "_run", fail)
    with pytest.raises(SystemExit) as end:
        job.part()
    assert end.value.code == code
    assert capsys.readouterr().err == f"growctl: {error}\n"


def test_a_job_with_an_internal_error_leaves_the_traceback_in_its_log_and_in_the_runs_directory(
    job, monkeypatch, capsys, tmp_path
):
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(job.part, "_run", lambda: list(zip([1], [1, 2], strict=True)))
    with pytest.raises(SystemExit) as end:
        job.part()
    assert end.value.code == 1
    *trace, line = capsys.readouterr().err.splitlines()
    [report] = (tmp_path / "runs/.bugs").iterdir()
    assert line.startswith("growctl: this is a bug in growctl: ValueError: zip() argument 2 is longer")
    assert str(report) in line
    assert trace[0] == "Traceback (most recent call last):"


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_damaged_list_of_jobs_is_rejected_with_its_path(tmp_path, content):
    run = RunPaths(tmp_path)
    run.jobs.parent.mkdir()
    run.jobs.write_bytes(content)
    with pytest.raises(RunError, match=r"jobs\.json, which lists the jobs of this run, cannot be read"):
        _check_no_jobs(run)


def test_a_jobs_schedule_is_the_ladders_with_all_its_settings(job, tmp_path):
    loaded = pickle.loads(pickle.dumps(job.part))
    assert loaded.request.ladder.schedule == load_schedule(str(tmp_path / "tiny.yaml"), LAUNCH)
    assert loaded.request.runs_dir.is_absolute()
