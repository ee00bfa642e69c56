"""`growctl status` of runs that are active, stopped, finished, unnamed, or on other machines."""

import fcntl
import io
import json
import os
import shlex
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from growctl.ladder.controls import plan_controls
from growctl.ladder.load import load_schedule
from growctl.launch.start_ranks import STARTED
from growctl.runs.find import RunNotFoundError
from growctl.runs.stages import StageStatus
from growctl.runs.status import RunStatus, being_prepared, find_status
from growctl.runs.status_sections import runs_section
from growctl.text.terminal import print_sections
from tests.growctl.cli.test_validate import STACKED
from tests.growctl.runs import CONTROL, SCHEDULE, run_here
from tests.growctl.runs.hand_made import KILLED, LAUNCHED, HandMade, only, printed, stages_of


def test_time_left_follows_from_the_last_speed_of_the_training_stage(tmp_path):
    made = HandMade(tmp_path)
    made.finishes("0-small", 30)
    made.saves("1-large", "initial", 0)
    made.trains("1-large", 20)
    with made.hold():
        status = only(tmp_path)
        out = printed(tmp_path)
    small, large = status.stages
    assert (small.seconds_left, large.seconds_left) == (None, 40 * 256 / 512.0)
    assert (large.training_loss, large.validation_loss, small.validation_loss) == (3.25, None, 2.5)
    assert "20s" in out
    assert only(tmp_path).stages[1].seconds_left is None


def test_a_stage_that_a_slope_ended_early_is_done_at_its_actual_steps(tmp_path):
    made = HandMade(tmp_path)
    made.finishes("0-small", 17)
    assert stages_of(only(tmp_path)) == ["small done 17/17", "large waiting 0/60"]


def test_the_next_stage_trains_until_its_share_of_a_shared_budget_after_one_that_ended_early(tmp_path):
    made = HandMade(tmp_path)
    schedule = yaml.safe_load(SCHEDULE)
    for stage, until in zip(schedule["stages"], ({"until": 0.5}, {}), strict=True):
        del stage["train_steps"]
        stage |= until
    schedule["training"]["ladder_tokens"] = (
        90 * schedule["training"]["batch_size"] * schedule["training"]["sequence_length"]
    )
    schedule |= {"growth": {"when": "slope", "slope": 1.0}, "evaluation": {"every": 5}}
    (made.directory / "schedule.yaml").write_text(yaml.safe_dump(schedule))
    made.finishes("0-small", 17)
    assert stages_of(only(tmp_path)) == ["small done 17/17", "large waiting 0/73"]


def test_a_finished_stage_is_done_without_its_metrics(tmp_path):
    made = HandMade(tmp_path)
    made.finishes("0-small", 30)
    (made.stage("0-small") / "metrics.jsonl").unlink()
    assert stages_of(only(tmp_path))[0] == "small done 30/30"


def test_a_resumed_stage_shows_the_step_of_its_last_attempt(tmp_path):
    made = HandMade(tmp_path)
    made.trains("0-small", 25)
    made.trains("0-small", 15, attempt=2, resumed_from=10)
    [small, _] = only(tmp_path).stages
    assert (small.step, small.state) == (15, "stopped")


def test_a_stage_is_starting_or_growing_until_its_workers_write_a_record(tmp_path):
    made = HandMade(tmp_path)
    with made.hold():
        assert only(tmp_path).stages[0].state == "starting"
        made.finishes("0-small", 30)
        made.stage("1-large").mkdir()
        assert only(tmp_path).stages[1].state == "growing"
        made.saves("1-large", "initial", 0)
        assert only(tmp_path).stages[1].state == "starting"
        made.trains("1-large", 10)
        assert only(tmp_path).stages[1].state == "training"
        os.utime(made.directory / ".lock")  # another process has taken over since
        assert only(tmp_path).stages[1].state == "starting"
        assert "starting" in printed(tmp_path)


def test_the_newest_intact_checkpoint_is_shown_and_a_broken_one_named(tmp_path):
    made = HandMade(tmp_path)
    made.trains("0-small", 25)
    made.saves("0-small", "step_00000010", 10)
    made.saves("0-small", "step_00000020", 20)
    assert only(tmp_path).stages[0].checkpoint == "step_00000020"
    (made.stage("0-small") / "step_00000020/manifest.json").write_text('{"format_version": 1, "ki')
    status = only(tmp_path)
    assert status.stages[0].checkpoint == "step_00000010"
    assert any("step_00000020" in note and "sets it aside" in note for note in status.notes)


def test_a_broken_result_does_not_count_as_done(tmp_path):
    made = HandMade(tmp_path)
    made.finishes("0-small", 30)
    made.finishes("1-large", 60)
    assert only(tmp_path).state == "finished"
    (made.stage("1-large") / "final/manifest.json").unlink()
    status = only(tmp_path)
    assert (status.state, stages_of(status)[1]) == ("stopped", "large stopped 60/60")
    assert "final is not a checkpoint" in " ".join(status.notes)
    (made.stage("0-small") / "final/manifest.json").unlink()
    assert stages_of(only(tmp_path)) == ["small stopped 30/30", "large waiting 60/60"]


def test_controls_are_listed_below_their_ladder_even_before_they_start(tmp_path):
    ladder = HandMade(tmp_path, text=SCHEDULE + CONTROL)
    ladder.finishes("0-small", 17)
    ladder.finishes("1-large", 60)
    HandMade(tmp_path, "aside")
    one_stage = "".join(line for line in SCHEDULE.splitlines(keepends=True) if "name: small" not in line)
    kinds = ["tokenformer-scratch", "transformer-scratch-0.5x"]
    names = [f"tiny-control-{kind}" for kind in kinds]
    found = find_status(tmp_path)
    assert [(status.name, status.state) for status in found[1:]] == [
        *(("tiny", "finished"), *((name, "not started") for name in names)),
    ]
    assert [status.control for status in found] == [None, None, "tokenformer-scratch", "transformer-scratch"]
    assert [status.control_of for status in found] == [None, None, "tiny", "tiny"]
    command = f"growctl run {tmp_path}/tiny/schedule.yaml --runs-dir {tmp_path}"
    assert {status.resume_command for status in found[2:]} == {command}
    assert found[1].resume_command is None
    planned = plan_controls(load_schedule(str(ladder.directory / "schedule.yaml")), [17, 60])
    assert [status.stages[0].num_steps for status in found[2:]] == [p.schedule.stages[0].train_steps for p in planned]

    control = HandMade(tmp_path, names[0], one_stage, control=kinds[0])
    control.trains("0-large", 10)
    with control.hold():
        found = find_status(tmp_path, ["tiny"])
        assert [status.state for status in found] == ["finished", "running", "not started"]
        assert [status.resume_command for status in found] == [None, None, None]
    assert [status.state for status in find_status(tmp_path, ["tiny"])] == ["finished", "stopped", "not started"]
    assert find_status(tmp_path, [names[0]])[0].resume_command == command
    assert printed(tmp_path).count(command) == 1
    shutil.rmtree(control.directory)
    assert f"to train {names[0]} and 1 more:\n    {command}\n" in printed(tmp_path)
    lines = [line.strip() for line in printed(tmp_path).splitlines()]
    assert any(line.startswith("tokenformer-scratch ") for line in lines)


def test_a_finished_ladder_whose_controls_cannot_be_planned_is_finished_and_the_reason_is_noted(tmp_path):
    text = f"{STACKED.replace('name: stacked', '')}controls: [{{kind: single-jump}}]\n"
    made = HandMade(tmp_path, text=text)
    for stage in ("0-d2", "1-d4", "2-d8"):
        made.finishes(stage, 20)
    status = only(tmp_path)
    assert (status.name, status.state, stages_of(status)[-1]) == ("tiny", "finished", "d8 done 20/20")
    [note] = status.notes
    rejected = "depth 'copy-stack' cannot add tokens to layers in the same growth; add them in another growth"
    assert note.startswith(f"its controls cannot be planned: {rejected}")


@pytest.mark.parametrize("width", [80, 100])
def test_the_steps_and_both_losses_of_every_kind_of_control_are_whole_and_named(width):
    kinds = ("transformer-scratch-0.5x", "tokenformer-scratch-2x", "best-scratch-124m-0.5x", "official-growth-0.5x")
    stage = StageStatus("1.4b", "waiting", step=123_456, num_steps=572_205, training_loss=2.34567, validation_loss=2.5)
    ladder = RunStatus("pile_1.4b", "running", "", stages=(stage, replace(stage, name="base", seconds_left=4e5)))
    names = [f"pile_1.4b-control-{kind}" for kind in kinds]
    controls = [RunStatus(name, "not started", "", control_of="pile_1.4b", stages=(stage,)) for name in names]
    out = io.StringIO()
    print_sections([runs_section([ladder, *controls], ["pile_1.4b"])], Console(file=out, width=width))
    above, headings, first, *below = [line.split() for line in out.getvalue().splitlines()]
    assert above == ["training", "validation"]
    assert headings[-4:] == ["step", "loss", "loss", "left"]
    assert first == ["pile_1.4b", "running", "1.4b", "1/2", "123k/572k", "2.3457", "2.5000"]
    whole = [cells for cells in below if len(cells) > 1]
    assert [cells[1:] for cells in whole] == [["not", "started", "1.4b", "123k/572k", "2.3457", "2.5000"]] * 4
    assert "".join(cells[0] for cells in below) == "".join(kinds)  # at 80, a name may break after a hyphen
    assert (len(below) == len(kinds)) == (width == 100)


def test_a_control_without_its_ladder_is_shown_under_its_own_name(tmp_path):
    control = HandMade(tmp_path, "gone-control-single-jump", control="single-jump")
    control.trains("0-small", 10)
    status = only(tmp_path)
    assert (status.control, status.control_of) == ("single-jump", "gone")
    assert any(line.startswith("  gone-control-single-jump ") for line in printed(tmp_path).splitlines())
    assert status.resume_command is None


def test_the_process_that_holds_a_run_and_its_machine_are_named(tmp_path):
    made = HandMade(tmp_path)
    made.trains("0-small", 10)
    with made.hold():
        assert (only(tmp_path).process, only(tmp_path).host) == (os.getpid(), socket.gethostname())
        (made.directory / ".lock").write_text('{"process": 999999999, "host": "node-9"}')
        status = only(tmp_path)
        assert (status.state, status.process, status.host) == ("running", 999999999, "node-9")
        assert "process 999999999 on node-9" in printed(tmp_path, "tiny")
        (made.directory / ".lock").write_text("")
        assert (only(tmp_path).state, only(tmp_path).process) == ("running", None)
    assert (only(tmp_path).state, only(tmp_path).since) == ("stopped", None)


def test_status_leaves_no_lock_behind(tmp_path):
    made = HandMade(tmp_path)
    only(tmp_path)
    with (made.directory / ".lock").open("a+") as lock:
        assert fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB) is None  # else it raises BlockingIOError


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", None),
        ("Main process received SIGTERM, exiting\n", None),
        (KILLED + "143\n", None),
        (KILLED + "-9\n", "a worker was ended by signal 9: the machine ran out of memory, or someone ended it"),
        (KILLED + "-11\n", "a worker was ended by signal 11: it crashed"),
        (KILLED + "-9\nMain process received SIGTERM, exiting\n", None),
        ("Traceback (most recent call last):\n  File\nOSError: disk full\n" + KILLED + "1\n", "OSError: disk full"),
        ("growctl: the loss is nan\n" + KILLED + "1\n", "the loss is nan"),
        ("worker-1: growctl: the loss is nan\n", "the loss is nan"),
        ("growctl: the loss is nan\n" + LAUNCHED + KILLED + "143\n", None),
        ("a warning that speaks of some Error in passing\n", None),
        ("\x00\xff no text\n", None),
    ],
)
@pytest.mark.parametrize("begun", [LAUNCHED, f"{STARTED} 2 of python -m stages.train.worker spec.json\n"])
def test_the_reason_of_a_failure_is_found_in_the_attempts_part_of_the_log(tmp_path, begun, log, reason):
    made = HandMade(tmp_path)
    made.trains("0-small", 10)
    log = log.replace(LAUNCHED, begun)
    (made.stage("0-small") / "log.txt").write_text(begun + log, errors="surrogateescape")
    status = only(tmp_path)
    assert (status.state, status.reason) == ("failed" if reason else "stopped", reason)


def test_slurm_jobs_of_a_run_are_shown_with_the_squeue_command(tmp_path):
    made = HandMade(tmp_path, text=SCHEDULE + CONTROL)
    jobs = {"tiny.small": "71", "tiny.large": "72", "tiny-control-tokenformer-scratch.large": "73", "tinier": "74"}
    (made.directory / "slurm").mkdir()
    (made.directory / "slurm/jobs.json").write_text(json.dumps(jobs))
    ladder, control, other = find_status(tmp_path)
    assert ladder.jobs == {"tiny.small": "71", "tiny.large": "72"}
    assert control.jobs == {"tiny-control-tokenformer-scratch.large": "73"}
    assert other.jobs == {}
    HandMade(tmp_path, control.name, control="tokenformer-scratch")
    assert find_status(tmp_path)[1].jobs == control.jobs
    assert "squeue --jobs=71,72" in printed(tmp_path)
    (made.directory / "slurm/jobs.json").write_text('["71"')
    assert "jobs.json, which lists the jobs of this run, cannot be read" in " ".join(find_status(tmp_path)[0].notes)


def test_a_run_whose_slurm_jobs_wait_in_the_queue_has_no_notes_and_is_resumed_only_without_them(tmp_path):
    made = HandMade(tmp_path, text=SCHEDULE)
    made.trains("0-small", 10)
    (made.directory / "slurm").mkdir()
    (made.directory / "slurm/jobs.json").write_text('{"tiny": "71"}')
    commands = run_here("status", "--runs-dir", tmp_path)[0]
    assert "to resume tiny, once none of its jobs is queued or running:\n    growctl run" in commands
    shutil.rmtree(made.directory / "stages")
    (made.directory / "ledger.db").unlink()
    queued = only(tmp_path)
    assert (queued.state, queued.notes) == ("not started", ())


def test_a_dataset_that_is_being_prepared_is_named(tmp_path):
    (tmp_path / ".datasets").mkdir()
    lock = tmp_path / ".datasets/.text-0123.lock"
    lock.touch()
    assert being_prepared(tmp_path) == []
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert being_prepared(tmp_path) == ["text-0123"]


# Names, and nothing at all.


def test_an_unknown_run_gives_the_nearest_names(tmp_path):
    for name in ("quickstart", "wikitext"):
        HandMade(tmp_path, name)
    with pytest.raises(RunNotFoundError, match=r"no run 'quikstart' in .*; the nearest are quickstart, wikitext"):
        find_status(tmp_path, ["quikstart"])
    out, err = run_here("status", "quikstart", "--runs-dir", tmp_path, expect=2)
    assert (out, "the nearest are quickstart" in err, "Traceback" in err) == ("", True, False)


def test_an_empty_runs_directory_gives_a_message_and_exit_code_0(tmp_path):
    out, _ = run_here("status", "--runs-dir", tmp_path / "nowhere")
    assert "there are no runs in" in out
    (tmp_path / "notes").mkdir()
    (tmp_path / ".datasets").mkdir()
    assert json.loads(run_here("status", "--runs-dir", tmp_path, "--json")[0])["runs"] == []


def test_the_resume_command_is_quoted_for_a_shell(tmp_path, monkeypatch):
    HandMade(tmp_path / "my runs")
    status = only(tmp_path / "my runs")
    assert shlex.split(status.resume_command)[2:] == [
        *(f"{tmp_path}/my runs/tiny/schedule.yaml", "--runs-dir", f"{tmp_path}/my runs"),
    ]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my runs").rename(tmp_path / "runs")
    assert only(Path("runs")).resume_command == "growctl run runs/tiny/schedule.yaml"


@pytest.mark.parametrize("names", [(), ("tiny",)])
def test_tables_fit_80_columns(tmp_path, names):
    ladder = HandMade(tmp_path, text=SCHEDULE.replace("train_steps: 60", "train_steps: 143000") + CONTROL)
    ladder.finishes("0-small", 30)
    ladder.saves("1-large", "step_00085000", 85000)
    ladder.trains("1-large", 85000)
    HandMade(tmp_path, "a-run-with-a-name-that-goes-on-and-on-as-some-do-when-every-setting-is-in-it")
    with ladder.hold():
        out = printed(tmp_path, *names, width=80)
    assert ("85000/143000" if names else "85k/143k") in out
    tables = [line for line in out.splitlines() if "growctl run" not in line]
    assert max(map(len, tables)) <= 80, out
    assert "…" not in out
