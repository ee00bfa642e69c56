"""`growctl status` of runs with broken, missing and hostile files."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import growctl.runs.status
from growctl.runs.status import RunStatus, StatusDocument, find_status
from growctl.text.documents import plain
from tests.growctl.runs import CONTROL, SCHEDULE
from tests.growctl.runs.hand_made import HandMade, only, printed
from tests.growctl.text.schemas import assert_follows_schema

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


@pytest.mark.parametrize("content", ["seed: !!bool maybe", "[" * 5000], ids=["tag", "deep"])
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
