"""Runs as SLURM jobs on a fake cluster: chains, time-limit warnings, requeues and messages."""

import os
import pickle
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from submitit.core.utils import UncompletedJobError

from growctl.ladder.load import load_schedule
from growctl.launch.machines import LaunchError
from growctl.launch.resolve import machines_of
from growctl.run import slurm_jobs as job_module
from growctl.run.requests import LadderRequest, RunFailed
from growctl.run.signals import STOPS
from growctl.run.slurm_jobs import JobPart, plan_jobs
from model.errors import Failure
from tests.growctl.runs import (
    CONTROL,
    FAULTS,
    SCHEDULE,
    final_hashes,
    held,
    losses,
    paused_rank,
    reached,
    run_here,
    wait_for,
    workers_of,
    write_schedule,
)
from tests.reliability.faults.sitecustomize import VARIABLE
from tests.workers import REPOSITORY

LAUNCH = (
    *("launch.cluster=slurm", "launch.nodes=2", "launch.devices=1", "launch.slurm.gpus=false"),
    "launch.environment={GLOO_SOCKET_IFNAME: lo, OMP_NUM_THREADS: '1'}",
)


def job_file(slurm: Path, number: int, name: str) -> str:
    path = slurm / str(number) / name
    return path.read_text() if path.exists() else ""


def wait_for_state(slurm: Path, number: int, *states: str) -> None:
    wait_for(lambda: job_file(slurm, number, "state") in states)


def scancel(*arguments: object) -> None:
    subprocess.run(["scancel", *map(str, arguments)], check=True)


def test_preempted_cancelled_and_timed_out_jobs_end_in_the_same_bits(two_ranks, runs_dir, slurm, tmp_path, monkeypatch):
    schedule, done = two_ranks
    small, large = (runs_dir / "tiny/stages" / name for name in ("0-small", "1-large"))
    logs = runs_dir / "tiny/slurm"

    monkeypatch.setenv("PYTHONPATH", f"{FAULTS}:{REPOSITORY}")
    # one job per stage; pre-emption sends SIGTERM to all processes of the job and is not counted
    chain = [*LAUNCH, "launch.slurm.job=stage", "launch.slurm.max_requeues=0", "--runs-dir", runs_dir]
    monkeypatch.setenv(VARIABLE, paused_rank(tmp_path / ".marks", "0-small"))
    out, _ = run_here("run", schedule, *chain)
    assert f"job 101: tiny.small (2 machines x 1); log: {logs}/101_0_log.out" in out
    assert "job 102: tiny.large (2 machines x 1, after tiny.small)" in out
    wait_for(reached(small / "metrics.jsonl", "train", 1))
    with held([int(pid) for pid in job_file(slurm, 101, "tasks").split()], small):
        _, err = run_here("run", schedule, *chain, expect=2)
        assert "this run already has jobs: 101 (tiny.small, RUNNING), 102 (tiny.large, PENDING)" in err
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
    out, _ = run_here("run", schedule, *LAUNCH, "launch.slurm.time_limit=4m", "--runs-dir", runs_dir)
    assert "job 103: tiny (2 machines x 1); log: " in out
    wait_for(reached(large / "metrics.jsonl", "checkpoint", 10))
    with held([int(pid) for pid in job_file(slurm, 103, "tasks").split()], large):
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


def test_a_failed_job_reports_why_and_the_jobs_behind_it_do_not_start(training, tmp_path, slurm):
    source = tmp_path / "texts"
    source.mkdir()
    (source / "some.py").write_text("too short\n")
    schedule = write_schedule(tmp_path)
    launch = [*LAUNCH, f"data.source={source}", "launch.slurm.job=stage", "--runs-dir", tmp_path / "runs"]
    run_here("run", schedule, *launch)
    wait_for_state(slurm, 102, "CANCELLED")
    assert job_file(slurm, 101, "state") == "FAILED"
    assert job_file(slurm, 102, "starts") == ""
    log = (tmp_path / "runs/tiny/slurm/101_0_log.out").read_text()
    assert ("growctl: data." in log, "Traceback" in log) == (True, False)
    (slurm / "hold").touch()
    run_here("run", schedule, *launch, "seed=5")  # nothing was trained, so the schedule may change
    assert [job_file(slurm, job, "state") for job in (103, 104)] == ["PENDING"] * 2


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("launch.devices=auto", "launch.devices = 'auto': a login node cannot count"),
        ("launch.nodes=3", "must be a multiple of 3, for 3 devices of stage small (3 machines x 1)"),
        ("launch.slurm.warn_before=20h", "launch.slurm.warn_before = 72000 s: must be above 0, 65535 at most"),
        ("launch.slurm={warn_before: 90s, time_limit: 2m}", "launch.slurm.warn_before = 90 s: must be above 0"),
    ],
)
def test_invalid_job_settings_are_rejected_before_anything_is_written(tmp_path, slurm, setting, message):
    _, err = run_here("run", write_schedule(tmp_path), *LAUNCH, setting, "--runs-dir", tmp_path / "runs", expect=2)
    assert message in err
    assert not (tmp_path / "runs").exists()


SCRATCH, HALF = "tiny-control-tokenformer-scratch", "tiny-control-decoder-scratch-0.5x"
BY_STAGE = [
    ("tiny.small", 1, 0, ()),
    ("tiny.large", 2, 1, ("tiny.small",)),
    (f"{SCRATCH}.large", 2, 0, ("tiny.large",)),
    (f"{HALF}.large", 2, 0, ("tiny.large",)),
]


@pytest.mark.parametrize(
    ("overrides", "jobs"),
    [
        ([], [("tiny", 2, None, ()), (SCRATCH, 2, None, ("tiny",)), (HALF, 2, None, ("tiny",))]),
        (
            ["controls=[{kind: tokenformer-scratch, budgets: [2, 1], peaks: [1, 2]}]"],
            [
                *(("tiny", 2, None, ()), (SCRATCH, 2, None, ("tiny",)), (f"{SCRATCH}-peak2x", 2, None, ("tiny",))),
                (f"{SCRATCH}-2x", 2, None, (SCRATCH, f"{SCRATCH}-peak2x")),
            ],
        ),
        (["launch.slurm.job=stage"], BY_STAGE),
        (["launch.slurm.job=stage", "releases=all"], BY_STAGE),
    ],
    ids=[
        "a job for each run",
        "the best peak after the peaks",
        "a job for each stage",
        "releases in the jobs of their stages",
    ],
)
def test_a_ladder_or_stage_has_the_machines_it_needs_and_waits_for_what_it_continues(tmp_path, overrides, jobs):
    """The rows have the name, the machines, the last stage and the dependency of every job."""
    path = str(write_schedule(tmp_path, SCHEDULE + CONTROL))
    schedule = load_schedule(path, [*LAUNCH, "launch.nodes=[1,2]", *overrides])
    request = LadderRequest.of(schedule, "tiny", tmp_path / "runs", None, True)
    planned = plan_jobs(request, request.checked(machines_of(schedule)))
    assert [(job.name, job.nodes, job.last_stage, job.after) for job in planned] == jobs
    if "releases=all" in overrides:
        assert [plan.name for plan in planned[0].stages] == ["small", "small/release"]


class Job:
    """A JobPart that runs as if in a job; `events` has what it closed, and each requeue."""

    def __init__(self, folder: Path) -> None:
        schedule = load_schedule(str(write_schedule(folder)), LAUNCH)
        self.part = JobPart(LadderRequest.of(schedule, "tiny", folder / "runs", None, True), "tiny", None)
        self.events: list[str] = []
        self.refusal: Exception | None = None

    def requeue(self, number: int, frame: object) -> None:
        """Stands in for submitit's handler of the warning."""
        if self.refusal:
            raise self.refusal
        self.events.append("requeued")

    def end(self, work: Callable[[], Any]) -> int | None:
        """Runs the part with `work` in place of the runner; its exit code, if it exits."""
        setattr(self.part, "_run", work)  # noqa: B010
        try:
            return self.part()
        except SystemExit as end:
            return cast(int, end.code)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    handlers = {number: signal.getsignal(number) for number in STOPS}
    job = Job(tmp_path)
    signal.signal(signal.SIGUSR2, job.requeue)
    monkeypatch.setenv("SLURM_JOB_ID", "101")
    yield job
    for number, handler in handlers.items():
        signal.signal(number, handler)


CLOSED, REQUEUED = ["closed"], ["closed", "requeued"]
RUNNING = {"101": "RUNNING"}
SCONTROL = ["scontrol", "requeue", "101"]


@pytest.mark.parametrize(
    ("number", "answers", "refusal", "code", "events", "said"),
    [
        pytest.param(signal.SIGUSR2, [], None, None, REQUEUED, "", id="warned of its time limit"),
        pytest.param(signal.SIGTERM, [RUNNING], None, None, REQUEUED, "", id="preempted"),
        pytest.param(signal.SIGTERM, [Failure("busy"), RUNNING], None, None, REQUEUED, "", id="squeue answers late"),
        pytest.param(signal.SIGTERM, [{"101": "COMPLETING"}], None, 143, CLOSED, "", id="cancelled"),
        pytest.param(
            *(signal.SIGUSR2, [], UncompletedJobError("timed-out too many times."), 1, CLOSED),
            "growctl: this job has reached its time limit and was not queued again: launch.slurm.max_requeues = 100; ",
            id="timed out too often",
        ),
        *(
            pytest.param(
                *(signal.SIGUSR2, [], error, 1, CLOSED),
                f"growctl: SLURM could not requeue this job: {str(error).rstrip('.')}; submit the run again",
                id=type(error).__name__,
            )
            for error in (subprocess.CalledProcessError(1, SCONTROL), subprocess.TimeoutExpired(SCONTROL, 60))
        ),
    ],
)
def test_a_signalled_job_closes_and_is_requeued(job, monkeypatch, capsys, number, answers, refusal, code, events, said):
    def training() -> None:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            job.events.append("closed")

    def states(ids: list[str]) -> dict[str, str]:
        answer = left.pop(0)
        if isinstance(answer, Failure):
            raise answer
        return answer

    left, job.refusal = list(answers), refusal
    monkeypatch.setattr(job_module, "ASK_AGAIN_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(job_module, "job_states", states)
    assert (job.end(training), job.events) == (code, events)
    err = capsys.readouterr().err
    assert (err.startswith(said), bool(err)) == (True, bool(said))


@pytest.mark.parametrize(
    ("error", "code"), [(RunFailed("no luck"), 1), (LaunchError("no sense"), 2), (ValueError("oh"), 1)], ids=repr
)
def test_a_job_ends_with_growctls_exit_code_and_message_and_reports_a_bug(job, capsys, tmp_path, error, code):
    (tmp_path / "runs").mkdir()

    def fail() -> None:
        raise error

    assert job.end(fail) == code
    lines = capsys.readouterr().err.splitlines()
    if type(error) is ValueError:
        [report] = (tmp_path / "runs/.bugs").iterdir()
        assert lines[0] == "Traceback (most recent call last):"
        assert str(report) in lines[-1]
    else:
        assert lines == [f"growctl: {error}"]


def test_a_jobs_schedule_is_the_ladders_with_all_its_settings(job, tmp_path):
    loaded = pickle.loads(pickle.dumps(job.part))
    assert loaded.request.ladder.schedule == load_schedule(str(tmp_path / "tiny.yaml"), LAUNCH)
    assert loaded.request.runs_dir.is_absolute()


def test_a_machine_without_slurm_gives_an_error_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    _, err = run_here("run", write_schedule(tmp_path), *LAUNCH, "--runs-dir", tmp_path / "runs", expect=2)
    assert "launch.cluster = 'slurm': needs sbatch and squeue and srun and scontrol and scancel on PATH" in err
    assert not (tmp_path / "runs").exists()
