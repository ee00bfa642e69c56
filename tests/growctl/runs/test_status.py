"""`growctl status` of runs that are active, stopped, finished, damaged, unnamed, or on other machines."""

import fcntl
import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growctl.launch.start_ranks import STARTED
from growctl.runs.status import StatusDocument, find_status
from growctl.text.documents import plain
from tests.growctl.runs import CONTROL, SCHEDULE
from tests.growctl.runs.hand_made import KILLED, LAUNCHED, ONE_STAGE, HandMade, only, printed, stages_of
from tests.growctl.text.schemas import assert_follows_schema


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    return HandMade(tmp_path)


def test_a_stage_is_done_at_its_actual_steps_and_a_resumed_one_is_at_the_step_of_its_last_attempt(tmp_path, made):
    made.finishes("0-small", 17)
    assert stages_of(only(tmp_path)) == ["small done 17/17", "large waiting 0/60"]
    (made.stage("0-small") / "metrics.jsonl").unlink()
    made.trains("1-large", 25)
    made.trains("1-large", 15, attempt=2, resumed_from=10)
    assert stages_of(only(tmp_path)) == ["small done 17/17", "large stopped 15/60"]


def test_a_stage_is_starting_or_growing_until_its_workers_write_a_record_and_then_has_a_time_left(tmp_path, made):
    with made.hold():
        assert only(tmp_path).stages[0].state == "starting"
        made.finishes("0-small", 30)
        made.stage("1-large").mkdir()
        assert only(tmp_path).stages[1].state == "growing"
        made.saves("1-large", "initial", 0)
        assert only(tmp_path).stages[1].state == "starting"
        made.trains("1-large", 20)
        small, large = only(tmp_path).stages
        assert (large.state, small.seconds_left, large.seconds_left) == ("training", None, 40 * 256 / 512.0)
        assert (large.training_loss, large.validation_loss, small.validation_loss) == (3.25, None, 2.5)
        os.utime(made.directory / ".lock")  # another process has taken over since
        assert only(tmp_path).stages[1].state == "starting"
    assert only(tmp_path).stages[1].seconds_left is None


def test_a_broken_checkpoint_is_named_and_the_one_before_shown_and_a_broken_result_is_not_done(tmp_path, made):
    made.finishes("0-small", 30)
    made.finishes("1-large", 60)
    for step in (10, 20):
        made.saves("1-large", f"step_000000{step}", step)
    assert (only(tmp_path).state, only(tmp_path).stages[1].checkpoint) == ("finished", "final")
    (made.stage("1-large") / "final/manifest.json").unlink()
    assert only(tmp_path).stages[1].checkpoint == "step_00000020"
    (made.stage("1-large") / "step_00000020/manifest.json").write_text('{"format_version": 1, "ki')
    status = only(tmp_path)
    assert (status.state, stages_of(status)[1]) == ("stopped", "large stopped 60/60")
    assert status.stages[1].checkpoint == "step_00000010"
    assert "final is not a checkpoint" in status.notes[0]
    assert any("step_00000020" in note and "sets it aside" in note for note in status.notes)
    (made.stage("0-small") / "final/manifest.json").unlink()
    assert stages_of(only(tmp_path)) == ["small stopped 30/30", "large waiting 60/60"]


def test_controls_are_listed_below_their_ladder_even_before_they_start(tmp_path):
    ladder = HandMade(tmp_path, text=SCHEDULE + CONTROL)
    ladder.finishes("0-small", 17)
    ladder.finishes("1-large", 60)
    HandMade(tmp_path, "aside")
    names = [f"tiny-control-{kind}" for kind in ("decoder-scratch-0.5x", "tokenformer-scratch")]
    command = f"growctl run {tmp_path}/tiny/schedule.yaml --runs-dir {tmp_path}"
    aside, *family = find_status(tmp_path)
    assert [(run.name, run.state, run.control, run.control_of, run.resume_command) for run in family] == [
        ("tiny", "finished", None, None, None),
        (names[0], "not started", "decoder-scratch", "tiny", command),
        (names[1], "not started", "tokenformer-scratch", "tiny", command),
    ]
    assert (aside.name, aside.control_of) == ("aside", None)

    control = HandMade(tmp_path, names[1], ONE_STAGE, control="tokenformer-scratch")
    control.trains("0-large", 10)
    with control.hold():
        assert [(run.state, run.resume_command) for run in find_status(tmp_path, ["tiny"])] == [
            *(("finished", None), ("not started", None), ("running", None))
        ]
    assert [run.state for run in find_status(tmp_path, ["tiny"])] == ["finished", "not started", "stopped"]
    assert find_status(tmp_path, [names[1]])[0].resume_command == command
    assert printed(tmp_path).count(command) == 1


def test_the_process_that_holds_a_run_and_its_machine_are_named_and_status_holds_nothing(tmp_path, made):
    made.trains("0-small", 10)
    with made.hold():
        assert (only(tmp_path).process, only(tmp_path).host) == (os.getpid(), socket.gethostname())
        (made.directory / ".lock").write_text('{"process": 999999999, "host": "node-9"}')
        assert only(tmp_path).state == "running"
        assert "process 999999999 on node-9" in printed(tmp_path, "tiny")
        (made.directory / ".lock").write_text("")
        assert (only(tmp_path).state, only(tmp_path).process) == ("running", None)
    assert (only(tmp_path).state, only(tmp_path).since) == ("stopped", None)
    with made.hold() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises BlockingIOError if status left a lock behind


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("", None),
        ("Main process received SIGTERM, exiting\n", None),
        (KILLED + "-9\n", "a worker was ended by signal 9: the machine ran out of memory, or someone ended it"),
        (KILLED + "-9\nMain process received SIGTERM, exiting\n", None),
        ("Traceback (most recent call last):\n  File\nOSError: disk full\n" + KILLED + "1\n", "OSError: disk full"),
        ("growctl: the loss is nan\n" + KILLED + "1\n", "the loss is nan"),
        ("worker-1: growctl: the loss is nan\n", "the loss is nan"),
        ("growctl: the loss is nan\n" + LAUNCHED + KILLED + "143\n", None),
        ("\x00\xff a warning that speaks of some Error in passing\n", None),
    ],
)
@pytest.mark.parametrize("begun", [LAUNCHED, f"{STARTED} 2 of python -m stages.train.worker spec.json\n"])
def test_the_reason_of_a_failure_is_found_in_the_attempts_part_of_the_log(tmp_path, made, begun, log, reason):
    made.trains("0-small", 10)
    text = begun + log.replace(LAUNCHED, begun)
    (made.stage("0-small") / "log.txt").write_text(text, errors="surrogateescape")
    status = only(tmp_path)
    assert (status.state, status.reason) == ("failed" if reason else "stopped", reason)


def test_slurm_jobs_are_shown_for_their_runs_which_are_resumed_only_without_them(tmp_path):
    made = HandMade(tmp_path, text=SCHEDULE + CONTROL)
    jobs = {"tiny.small": "71", "tiny.large": "72", "tiny-control-tokenformer-scratch.large": "73", "tinier": "74"}
    file = made.directory / "slurm/jobs.json"
    file.parent.mkdir()
    file.write_text(json.dumps(jobs))
    ladder, other, control = find_status(tmp_path)
    assert ladder.jobs == {"tiny.small": "71", "tiny.large": "72"}
    assert (control.jobs, other.jobs) == ({"tiny-control-tokenformer-scratch.large": "73"}, {})
    resume = "to resume tiny and 2 more, once none of its jobs is queued or running:\n    growctl run"
    assert resume in printed(tmp_path)
    (made.directory / "ledger.db").unlink()
    assert (find_status(tmp_path)[0].state, find_status(tmp_path)[0].notes) == ("not started", ()), "it is queued"


FILES = (
    *("schedule.yaml", "ledger.db", ".lock", "slurm/jobs.json", "stages/0-small/final/manifest.json"),
    *("stages/0-small/metrics.jsonl", "stages/1-large/metrics.jsonl", "stages/1-large/log.txt"),
    *("stages/1-large/initial/manifest.json", "stages/1-large/step_00000010/manifest.json"),
)


def test_a_damaged_ledger_is_named_and_a_run_without_its_schedule_is_not_resumed(tmp_path, made):
    for file in ("ledger.db", "schedule.yaml"):
        (made.directory / file).write_bytes(b"\0damaged")
        assert any(file in note for note in only(tmp_path).notes)
    assert (only(tmp_path).state, only(tmp_path).resume_command) == ("damaged", None)


@pytest.mark.slow
@settings(max_examples=25)
@given(file=st.sampled_from(FILES), data=st.binary(max_size=80))
def test_no_bytes_in_any_file_crash_status(tmp_path_factory, file, data):
    runs_dir = tmp_path_factory.mktemp("any")
    made = HandMade(runs_dir, text=SCHEDULE + CONTROL)
    made.finishes("0-small", 30)
    made.saves("1-large", "initial", 0)
    made.saves("1-large", "step_00000010", 10)
    made.trains("1-large", 10)
    (made.directory / "slurm").mkdir()
    (made.directory / file).write_bytes(data)
    found = find_status(runs_dir)
    assert found[0].name == "tiny"
    assert_follows_schema(plain(StatusDocument(runs_dir, (), tuple(found))), "status")
    printed(runs_dir)
    printed(runs_dir, "tiny")


def test_a_run_that_was_just_created_gives_no_notes(tmp_path):
    made = HandMade(tmp_path)
    for name in ("schedule.yaml", "ledger.db"):
        (made.directory / name).unlink()
    (made.directory / ".lock").write_text(str(os.getpid()))
    with made.hold():
        status = only(tmp_path)
        assert (status.state, status.stages, status.notes) == ("running", (), ())
    assert only(tmp_path).state == "not started"
