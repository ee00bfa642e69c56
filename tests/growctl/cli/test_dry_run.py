"""`growctl run --dry-run` prints exactly what a run would start, and writes nothing."""

import os
import shlex
import sys
from pathlib import Path

from growctl.cli.dry_run import dry_run_text
from growctl.ladder.load import load_schedule
from growctl.launch.hostfile import hostfile_machines
from growctl.run.requests import LadderRequest
from tests.growctl.runs import CONTROL, SCHEDULE, run_here, write_schedule

SLURM = (
    *("launch.cluster=slurm", "launch.nodes=[1,2]", "launch.devices=4", "training.batch_size=64"),
    *("launch.slurm.partition=gpu", "launch.slurm.account=lab", "launch.slurm.time_limit=90m"),
    *("launch.slurm.warn_before=5m", "launch.slurm.memory=40GiB", "launch.slurm.setup=['module load cuda']"),
    "launch.slurm.options={reservation: mine, exclusive: true, contiguous: false}",
)


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def dry_run(folder: Path, *overrides: str, controls: bool = True) -> tuple[str, LadderRequest]:
    """The output of a dry run of a ladder with two controls, and its request. Asserts that it has written nothing."""
    schedule = load_schedule(str(write_schedule(folder, SCHEDULE + CONTROL)), overrides)
    request = LadderRequest.of(schedule, "tiny", folder / "runs", None, controls)
    before = files(folder)
    text = dry_run_text(request)
    assert files(folder) == before
    return text, request


def test_controls_are_shown_unless_they_are_left_out_with_the_ranks_that_auto_devices_give(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    text, _ = dry_run(tmp_path, "launch.devices=auto")
    assert text.count("growctl.launch.start_ranks") == 4
    assert "## stage small: 2 ranks" in text
    assert "# tiny-control-decoder-scratch-0.5x: control (decoder-scratch)" in text
    assert dry_run(tmp_path, controls=False)[0].count("growctl.launch.start_ranks") == 2
    out, _ = run_here("run", tmp_path / "tiny.yaml", "--dry-run", "--runs-dir", tmp_path / "runs")
    assert f"stages.train.worker {tmp_path}/runs/tiny/stages/1-large/spec.json" in out
    assert files(tmp_path) == {tmp_path / "tiny.yaml"}


def test_with_a_hostfile_it_prints_the_exact_launch_and_what_this_machine_lacks(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "hosts").write_text("one slots=4\ntwo slots=4\n")
    cluster = ["launch.cluster=hostfile", f"launch.hostfile.path={tmp_path}/hosts", "launch.devices=auto"]
    text, request = dry_run(tmp_path, *cluster, "launch.nodes=[1,2]", "launch.environment={NCCL_DEBUG: INFO}")
    large = tmp_path / "runs/tiny/stages/1-large"
    launch = hostfile_machines(request.ladder.schedule.launch, 2).launch(large / "spec.json", nodes=2, attempt=1)
    ranks = {"## stage small: 4 ranks", "## stage large: 2 machines x 4 = 8 ranks"}
    assert ranks | {shlex.join(launch.command), f"cd {large}"} <= set(text.splitlines())
    for path, content in launch.files.items():
        assert f"# {path}:\n" + "".join(f"#   {line}\n" for line in content.splitlines()) in text
    assert "# The run cannot start on this machine. launch.cluster = 'hostfile' with runner 'pdsh': needs pdsh" in text


def test_a_job_requests_the_resources_in_the_schedule_and_replaces_its_shell_with_python(tmp_path):
    lines = dry_run(tmp_path, *SLURM)[0].splitlines()
    requests = {
        *("--account=lab", "--cpus-per-task=8", "--dependency=afterok:ID-OF-tiny", "--exclusive", "--gpus-per-node=4"),
        *("--job-name=tiny", "--kill-on-invalid-dep=yes", "--mem=40960M", "--nodes=2", "--ntasks-per-node=4"),
        *("--open-mode=append", "--partition=gpu", "--requeue", "--reservation=mine", "--time=90"),
        "--signal=B:USR2@300",  # only the batch shell, which Python has replaced: the signal would kill workers
    }
    assert {f"#SBATCH {request}" for request in requests} | {"module load cuda"} <= set(lines)
    assert not [line for line in lines if "contiguous" in line or "wckey" in line or "qos" in line]
    commands = [line for line in lines if "submitit.core._submit" in line]
    assert len(commands) == 3
    assert all(line.startswith(f"exec {sys.executable} -u -m submitit.core._submit /") for line in commands)
