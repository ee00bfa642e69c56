"""`growctl status` of runs that are active, stopped, finished, damaged, unnamed, or on other machines."""

import fcntl
import json
import os
import shlex
import shutil
import socket
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import growctl.runs.status
from growctl.ladder.controls import plan_controls
from growctl.ladder.load import load_schedule
from growctl.launch.start_ranks import STARTED
from growctl.runs.find import RunNotFoundError
from growctl.runs.status import RunStatus, StatusDocument, being_prepared, find_status
from growctl.text.documents import plain
from tests.growctl.cli.test_validate import STACKED
from tests.growctl.runs import CONTROL, SCHEDULE, run_here
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


def test_the_next_stage_trains_until_its_share_of_a_shared_budget_after_one_that_ended_early(tmp_path, made):
    schedule = yaml.safe_load(SCHEDULE)
    small, large = schedule["stages"]
    del small["train_steps"], large["train_steps"]
    small["until"] = 0.5
    schedule["training"]["ladder_tokens"] = 90 * 8 * 32
    schedule |= {"growth": {"when": "slope", "slope": 1.0}, "evaluation": {"every": 5}}
    (made.directory / "schedule.yaml").write_text(yaml.safe_dump(schedule))
    made.finishes("0-small", 17)
    assert stages_of(only(tmp_path)) == ["small done 17/17", "large waiting 0/73"]


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
        assert "20s" in printed(tmp_path)
        os.utime(made.directory / ".lock")  # another process has taken over since
        assert only(tmp_path).stages[1].state == "starting"
        assert "starting" in printed(tmp_path)
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
    names = [f"tiny-control-{kind}" for kind in ("tokenformer-scratch", "transformer-scratch-0.5x")]
    command = f"growctl run {tmp_path}/tiny/schedule.yaml --runs-dir {tmp_path}"
    aside, *family = find_status(tmp_path)
    assert [(run.name, run.state, run.control, run.control_of, run.resume_command) for run in family] == [
        ("tiny", "finished", None, None, None),
        (names[0], "not started", "tokenformer-scratch", "tiny", command),
        (names[1], "not started", "transformer-scratch", "tiny", command),
    ]
    assert (aside.name, aside.control_of) == ("aside", None)
    planned = plan_controls(load_schedule(str(ladder.directory / "schedule.yaml")), [17, 60])
    assert [run.stages[0].num_steps for run in family[1:]] == [p.schedule.stages[0].train_steps for p in planned]
    assert f"to train {names[0]} and 1 more:\n    {command}\n" in printed(tmp_path)

    control = HandMade(tmp_path, names[0], ONE_STAGE, control="tokenformer-scratch")
    control.trains("0-large", 10)
    with control.hold():
        assert [(run.state, run.resume_command) for run in find_status(tmp_path, ["tiny"])] == [
            *(("finished", None), ("running", None), ("not started", None)),
        ]
    assert [run.state for run in find_status(tmp_path, ["tiny"])] == ["finished", "stopped", "not started"]
    assert find_status(tmp_path, [names[0]])[0].resume_command == command
    assert printed(tmp_path).count(command) == 1


def test_a_finished_ladder_whose_controls_cannot_be_planned_is_finished_and_the_reason_is_noted(tmp_path):
    made = HandMade(tmp_path, text=STACKED.replace("name: stacked", "controls: [{kind: single-jump}]"))
    for stage in ("0-d2", "1-d4", "2-d8"):
        made.finishes(stage, 20)
    status = only(tmp_path)
    assert (status.name, status.state, stages_of(status)[-1]) == ("tiny", "finished", "d8 done 20/20")
    assert status.notes[0].startswith("its controls cannot be planned: depth 'copy-stack' cannot add tokens to layers")


def test_a_control_without_its_ladder_is_shown_under_its_own_name(tmp_path):
    HandMade(tmp_path, "gone-control-single-jump", control="single-jump").trains("0-small", 10)
    status = only(tmp_path)
    assert (status.control, status.control_of, status.resume_command) == ("single-jump", "gone", None)
    assert "\n  gone-control-single-jump " in printed(tmp_path)


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
    ladder, control, other = find_status(tmp_path)
    assert ladder.jobs == {"tiny.small": "71", "tiny.large": "72"}
    assert (control.jobs, other.jobs) == ({"tiny-control-tokenformer-scratch.large": "73"}, {})
    HandMade(tmp_path, control.name, control="tokenformer-scratch")
    assert find_status(tmp_path)[1].jobs == control.jobs
    assert "squeue --jobs=71,72" in printed(tmp_path)
    assert "to resume tiny and 2 more, once none of its jobs is queued or running:\n    growctl run" in printed(
        tmp_path
    )
    (made.directory / "ledger.db").unlink()
    assert (find_status(tmp_path)[0].state, find_status(tmp_path)[0].notes) == ("not started", ()), "it is queued"
    file.write_text('["71"')
    assert "jobs.json, which lists the jobs of this run, cannot be read" in " ".join(find_status(tmp_path)[0].notes)


def test_a_dataset_that_is_being_prepared_is_named(tmp_path):
    (tmp_path / ".datasets").mkdir()
    with (tmp_path / ".datasets/.text-0123.lock").open("w") as held:
        assert being_prepared(tmp_path) == []
        fcntl.flock(held, fcntl.LOCK_EX)
        assert being_prepared(tmp_path) == ["text-0123"]


def test_an_empty_runs_directory_gives_a_message(tmp_path):
    assert "there are no runs in" in run_here("status", "--runs-dir", tmp_path / "nowhere")[0]
    (tmp_path / ".datasets").mkdir()
    assert json.loads(run_here("status", "--runs-dir", tmp_path, "--json")[0])["runs"] == []
    with pytest.raises(RunNotFoundError, match=r"no run 'tiny' in .*; it holds no runs"):
        find_status(tmp_path, ["tiny"])


def test_the_resume_command_is_quoted_for_a_shell(tmp_path, monkeypatch):
    HandMade(tmp_path / "my runs")
    command = shlex.split(only(tmp_path / "my runs").resume_command)
    assert command[2:] == [f"{tmp_path}/my runs/tiny/schedule.yaml", "--runs-dir", f"{tmp_path}/my runs"]
    monkeypatch.chdir(tmp_path)
    shutil.move("my runs", "runs")
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
    assert max(len(line) for line in out.splitlines() if "growctl run" not in line) <= 80
    assert "…" not in out


FILES = (
    *("schedule.yaml", "ledger.db", ".lock", "slurm/jobs.json", "stages/0-small/final/manifest.json"),
    *("stages/0-small/metrics.jsonl", "stages/1-large/metrics.jsonl", "stages/1-large/log.txt"),
    *("stages/1-large/initial/manifest.json", "stages/1-large/step_00000010/manifest.json"),
)


def everything_made(runs_dir: Path) -> HandMade:
    made = HandMade(runs_dir, text=SCHEDULE + CONTROL)
    made.finishes("0-small", 30)
    made.saves("1-large", "initial", 0)
    made.saves("1-large", "step_00000010", 10)
    made.trains("1-large", 10)
    (made.directory / "slurm").mkdir()
    (made.directory / "slurm/jobs.json").write_text('{"tiny": "71"}')
    return made


def seen(runs_dir: Path) -> list[RunStatus]:
    """The runs, after every function that shows them has run."""
    found = find_status(runs_dir)
    assert_follows_schema(plain(StatusDocument(runs_dir, (), tuple(found))), "status")
    printed(runs_dir)
    printed(runs_dir, "tiny")
    return found


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["cut", "gone", "folder", "other"])
@pytest.mark.slow
def test_a_broken_file_gives_a_note_and_the_rest_is_still_shown(tmp_path, file, damage):
    path = everything_made(tmp_path).directory / file
    whole = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"\x00\xff[1, {\n")
    status = seen(tmp_path)[0]
    without = file == "schedule.yaml"
    assert [stage.name for stage in status.stages] == ([] if without else ["small", "large"])
    assert ((status.state, status.resume_command) == ("damaged", None)) == without
    harmless = {".lock", "log.txt", "metrics.jsonl", "initial"}  # there is a step_* to resume from
    if not harmless & set(Path(file).parts) and (damage, file) != ("gone", "slurm/jobs.json"):
        assert any(Path(file).name in note or "final" in note for note in status.notes), status.notes


@pytest.mark.parametrize("content", ["seed: !!bool maybe", "seed: 0b_", "seed: !!set [a]"])
def test_a_schedule_that_is_no_longer_yaml_gives_a_note(tmp_path, content):
    (HandMade(tmp_path).directory / "schedule.yaml").write_text(content)
    assert "schedule.yaml, the run's own schedule, cannot be read" in only(tmp_path).notes[0]


@pytest.mark.slow
@settings(max_examples=25)
@given(file=st.sampled_from(FILES), data=st.binary(max_size=80))
def test_no_bytes_in_any_file_crash_status(tmp_path_factory, file, data):
    runs_dir = tmp_path_factory.mktemp("any")
    (everything_made(runs_dir).directory / file).write_bytes(data)
    assert seen(runs_dir)[0].name == "tiny"


def test_an_unreadable_directory_does_not_hide_the_others(tmp_path, monkeypatch):
    HandMade(tmp_path)
    HandMade(tmp_path, "theirs")
    read_stage = growctl.runs.status.read_stage

    def read(paths, *others, **named):
        if "theirs" in paths.directory.parts:
            raise PermissionError(13, "Permission denied", str(paths.directory))
        return read_stage(paths, *others, **named)

    monkeypatch.setattr(growctl.runs.status, "read_stage", read)
    theirs, tiny = seen(tmp_path)
    assert (theirs.state, theirs.resume_command, tiny.state) == ("unreadable", None, "stopped")
    assert "Permission denied" in theirs.notes[0]


def test_a_run_that_was_just_created_gives_no_notes(tmp_path):
    made = HandMade(tmp_path)
    for name in ("schedule.yaml", "ledger.db"):
        (made.directory / name).unlink()
    (made.directory / ".lock").write_text(str(os.getpid()))
    with made.hold():
        status = only(tmp_path)
        assert (status.state, status.stages, status.notes) == ("running", (), ())
    assert only(tmp_path).state == "not started"
