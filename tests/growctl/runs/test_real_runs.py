"""`growctl status` and `growctl clean` of runs that really train, stop, fail and finish."""

import shlex
import shutil
import signal
import socket

import pytest

from growctl.runs.verify import check, find_targets
from tests.growctl.runs import (
    final_hashes,
    finish,
    growctl,
    held,
    losses,
    paused_rank,
    reached,
    run,
    wait_for,
    workers_of,
)
from tests.growctl.runs.hand_made import only, printed, stages_of


def test_a_real_run_is_shown_running_then_stopped_and_the_printed_command_finishes_it(two_ranks, runs_dir, tmp_path):
    large = runs_dir / "tiny/stages/1-large"
    command = ("run", two_ranks[0], "stages.1.train_steps=150", "--runs-dir", runs_dir)
    process = growctl(*command, faults=paused_rank(tmp_path / ".marks", "1-large", steps=16))
    wait_for(reached(large / "metrics.jsonl", "train", 15), process)
    status = only(runs_dir)
    assert (status.state, status.process, status.host) == ("running", process.pid, socket.gethostname())
    assert stages_of(status) == ["small done 30/30", "large training 15/150"]
    current = status.stages[1]
    assert (status.stages[0].checkpoint, status.resume_command) == ("final", None)
    assert current.tokens_per_second
    assert current.seconds_left == pytest.approx((150 - current.step) * 256 / current.tokens_per_second)

    with held(workers_of(runs_dir), large):
        process.send_signal(signal.SIGTERM)
    finish(process, expect=143)
    status = only(runs_dir)
    assert (status.state, [stage.state for stage in status.stages]) == ("stopped", ["done", "stopped"])
    assert status.stages[1].checkpoint.startswith("step_")

    run(*shlex.split(status.resume_command)[1:])
    status, found = only(runs_dir), losses(runs_dir / "tiny")
    assert (status.state, stages_of(status)) == ("finished", ["small done 30/30", "large done 150/150"])
    recorded = found["1-large", 150, "final"], found["1-large", 150, "train"]
    assert (status.stages[1].validation_loss, status.stages[1].training_loss) == recorded


def test_a_real_failure_is_shown_with_the_runs_own_message(two_ranks, runs_dir):
    settings = ("learning_rate.peak=1e30", "optimizer.gradient_clipping=0")
    _, err = run("run", two_ranks[0], *settings, "--runs-dir", runs_dir, expect=1)
    status = only(runs_dir)
    assert status.state == "failed"
    assert stages_of(status) == ["small failed 12/30", "large waiting 0/60"]
    reason = status.reason or ""
    assert reason.startswith("the gradient of step 12 of stage small is not finite")
    assert reason in err
    assert reason in " ".join(printed(runs_dir).split())


def test_a_run_that_reuses_a_cleaned_one_stays_intact_and_running_either_again_trains_nothing(two_ranks, runs_dir):
    schedule, trained = two_ranks
    shutil.copytree(trained, runs_dir, dirs_exist_ok=True)
    command = ("run", schedule, "launch.devices=2", "--runs-dir", runs_dir, "--name")
    run(*command, "reuser")
    steps = list((runs_dir / "tiny").glob("stages/*/step_*"))
    before = final_hashes(runs_dir / "tiny")
    assert f"removed {len(steps)} directories" in run("clean", "--trunks", "--yes", "--runs-dir", runs_dir)[0]
    assert steps
    assert not any(path.exists() for path in steps)
    for name in ("tiny", "reuser"):
        assert all(check(target).whole for target in find_targets(runs_dir / name))
        assert "resuming" not in run(*command, name)[0]
        assert final_hashes(runs_dir / name) == before
