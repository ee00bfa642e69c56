"""`growctl status` of runs that really train, stop, fail and finish."""

import json
import shlex
import signal
import socket
import subprocess
import sys

import pytest

from tests.growctl.runs import finish, held, losses, paused_rank, reached, run, run_here, wait_until, workers_of
from tests.growctl.runs import growctl as start_growctl
from tests.growctl.runs.hand_made import only, printed, stages_of


def test_a_real_run_is_shown_running_then_stopped_and_the_printed_command_finishes_it(two_ranks, runs_dir, tmp_path):
    faults = paused_rank(tmp_path / ".marks", "1-large", steps=16)
    command = ("run", two_ranks[0], "stages.1.train_steps=150", "--runs-dir", runs_dir)
    process = start_growctl(*command, faults=faults)
    wait_until(reached(runs_dir / "tiny/stages/1-large/metrics.jsonl", "train", 15), process)
    status = only(runs_dir)
    assert (status.state, status.process, status.host) == ("running", process.pid, socket.gethostname())
    small, large = status.stages
    assert (small.state, small.step, small.num_steps, small.checkpoint) == ("done", 30, 30, "final")
    assert (large.state, large.num_steps) == ("training", 150)
    assert 15 <= large.step < 150
    assert large.tokens_per_second
    assert large.seconds_left == pytest.approx((150 - large.step) * 256 / large.tokens_per_second)
    assert status.resume_command is None
    assert f"process {process.pid} on {socket.gethostname()}, last record" in printed(runs_dir, "tiny")

    with held(workers_of(runs_dir), runs_dir / "tiny/stages/1-large"):
        process.send_signal(signal.SIGTERM)
    finish(process, expect=143)
    status = only(runs_dir)
    assert status.state == "stopped"
    assert [stage.state for stage in status.stages] == ["done", "stopped"]
    assert status.stages[1].checkpoint.startswith("step_")
    assert status.resume_command == f"growctl run {runs_dir}/tiny/schedule.yaml --runs-dir {runs_dir}"

    run(*shlex.split(status.resume_command)[1:])
    status = only(runs_dir)
    assert status.state == "finished"
    assert stages_of(status) == ["small done 30/30", "large done 150/150"]


def test_a_real_failure_is_shown_with_the_runs_own_message(two_ranks, runs_dir):
    _, err = run(
        *("run", two_ranks[0], "learning_rate.peak=1e30", "optimizer.gradient_clipping=0"),
        *("--runs-dir", runs_dir),
        expect=1,
    )
    status = only(runs_dir)
    assert status.state == "failed"
    assert stages_of(status) == ["small failed 12/30", "large waiting 0/60"]
    assert status.reason.startswith("the gradient of step 12 of stage small is not finite")
    assert (status.reason or "nothing") in err
    assert (status.reason or "nothing") in " ".join(printed(runs_dir).split())


def test_a_finished_run_as_json_for_scripts(two_ranks):
    out, err = run_here("status", "tiny", "--runs-dir", two_ranks[1], "--json")
    assert err == ""
    document = json.loads(out)
    assert (document["runs_dir"], document["preparing"]) == (str(two_ranks[1]), [])
    [tiny] = document["runs"]
    assert (tiny["name"], tiny["state"], tiny["schedule"], tiny["control"]) == (
        *("tiny", "finished", str(two_ranks[0]), None),
    )
    large = tiny["stages"][1]
    assert (large["state"], large["step"], large["checkpoint"]) == ("done", 60, "final")
    found = losses(two_ranks[1] / "tiny")
    recorded = found["1-large", 60, "final"], found["1-large", 60, "train"]
    assert (large["validation_loss"], large["training_loss"]) == recorded
    assert large["last_record_at"].endswith("+00:00")


def test_status_imports_neither_torch_nor_training_code(two_ranks):
    code = (
        "import sys\nfrom growctl.cli.app import app\n"
        f"try: app(['status', '--runs-dir', {str(two_ranks[1])!r}])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'deepspeed', 'matplotlib', 'hydra', 'datatrove', 'numpy', 'submitit'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "finished" in result.stdout
