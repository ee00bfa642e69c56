"""What a killed process left behind is removed, and what another process is writing, or may be, is not."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stages.checkpoint import directory as directory_module
from stages.checkpoint.directory import begin_directory, link_checkpoint, publish_directory, whole_directory
from stages.checkpoint.manifest import CheckpointError
from stages.checkpoint.staging import is_being_written, remove_abandoned
from stages.stage_dir import WRITING_MARK, staging_directory
from tests.stages.checkpoints import write_checkpoint
from tests.stages.unfinished import left
from tests.workers import REPOSITORY

WRITES = """
import sys, time
from pathlib import Path
from stages.checkpoint.directory import begin_directory
begin_directory(Path(sys.argv[1]))
print("begun", flush=True)
time.sleep(600)
"""


def test_writing_a_directory_removes_what_killed_processes_left_beside_it(tmp_path):
    left(tmp_path / "other")
    left(tmp_path / "from-before-the-machine-started", boot="another")
    with whole_directory(tmp_path / "new"):
        publish_directory(tmp_path / "new")
    assert [path.name for path in tmp_path.rglob("*")] == ["new"]


def test_what_another_process_is_writing_stays_until_the_process_is_killed(tmp_path):
    command = [sys.executable, "-c", WRITES, str(tmp_path / "new")]
    staging, said = staging_directory(tmp_path / "new"), list[str]()
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout.readline() == "begun\n"
            assert is_being_written(staging)
            remove_abandoned(tmp_path, said.append)
            with pytest.raises(
                CheckpointError, match=rf"growctl \(process {writer.pid} on .*\); wait until .*complete$"
            ):
                begin_directory(tmp_path / "new")
            assert [path.name for path in tmp_path.iterdir()] == [staging.name]
            assert said == []
        finally:
            writer.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)  # dead, but its parent does not know it yet
        assert not is_being_written(staging)
        remove_abandoned(tmp_path, said.append)
    assert said == [f"removed {staging}, which a killed process left unfinished"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "text", "writer"),
    [
        ({"host": "node-9"}, None, "process {} on node-9 since "),
        ({"pid_namespace": "another container"}, None, "process {} on "),
        *(({}, text, "an unknown process") for text in ("", "[]", "{", '{"process": "one"}')),
    ],
    ids=str,
)
def test_what_another_machine_container_or_process_may_be_writing_stays_and_is_named(tmp_path, changes, text, writer):
    staging, said, writer = left(tmp_path / "new", **changes), list[str](), writer.format(os.getpid())
    if text is not None:
        (staging / WRITING_MARK).write_text(text)
    with pytest.raises(CheckpointError, match=rf"growctl \({writer}.* or remove {staging} if that process has ended$"):
        whole_directory(tmp_path / "new").__enter__()
    remove_abandoned(tmp_path, said.append)
    assert (staging / "parameters/half").exists()
    assert said[0].startswith(f"left {staging}, which may still be written by {writer}")


def test_a_staging_directory_has_its_mark_from_the_first_moment_until_it_has_its_name(tmp_path, monkeypatch):
    staging, without, synced = staging_directory(tmp_path / "new"), list[bool](), list[bool]()
    sync = directory_module.sync_path

    def looking(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: (without.append(staging.exists() and not is_being_written(staging)), call(*arguments))

    with monkeypatch.context() as patched:
        for name in ("mkdir", "rename", "replace"):
            patched.setattr(os, name, looking(getattr(os, name)))
        begin_directory(tmp_path / "new")
    assert len(without) > 1
    assert not any(without)
    (staging / "parameters").mkdir()
    monkeypatch.setattr(
        directory_module, "sync_path", lambda path: (synced.append((path / WRITING_MARK).exists()), sync(path))
    )
    publish_directory(tmp_path / "new")
    assert synced[:2] == [False, True], "the folder inside it has none"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["parameters"]


def test_a_copy_of_a_checkpoint_has_no_mark(tmp_path):
    write_checkpoint(tmp_path / "final")
    (tmp_path / "final" / WRITING_MARK).touch()  # its process was killed right after it had renamed the directory
    link_checkpoint(tmp_path / "final", tmp_path / "copy")
    assert sorted(os.listdir(tmp_path / "copy")) == ["manifest.json", "parameters"]


def test_two_processes_that_begin_at_once_do_not_share_a_directory(tmp_path, monkeypatch):
    rename = os.rename

    def late(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "rename", rename)
        begin_directory(tmp_path / "new")
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    with pytest.raises(CheckpointError, match=f"is being written by another growctl .process {os.getpid()} on"):
        whole_directory(tmp_path / "new").__enter__()
    assert [path.name for path in tmp_path.iterdir()] == [staging_directory(tmp_path / "new").name]


def test_what_another_process_begins_after_the_rename_is_not_removed(tmp_path):
    with whole_directory(tmp_path / "new"):
        publish_directory(tmp_path / "new")
        staging = left(tmp_path / "new", host="node-9")
    assert staging.is_dir()


def test_a_removal_that_fails_hides_no_error_and_is_finished_by_the_next_command(tmp_path, monkeypatch):
    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    def fail() -> None:
        with whole_directory(tmp_path / "new") as staging:
            (staging / "parameters").mkdir()
            monkeypatch.setattr(shutil, "rmtree", busy)
            raise RuntimeError("the real error")

    with pytest.raises(RuntimeError, match="the real error"):
        fail()
    dead = left(tmp_path / "dead")
    remove_abandoned(tmp_path)
    monkeypatch.undo()
    for staging in (staging_directory(tmp_path / "new"), dead):
        assert (staging / WRITING_MARK).exists()
    remove_abandoned(tmp_path)
    assert not dead.exists()


def test_unmarked_directories_links_and_folders_of_the_user_stay(tmp_path):
    staging_directory(tmp_path / "unmarked").mkdir()
    elsewhere, said = left(tmp_path / "elsewhere/new"), list[str]()
    staging_directory(tmp_path / "link").symlink_to(elsewhere)
    (tmp_path / ".mine").mkdir()
    shutil.copy(elsewhere / WRITING_MARK, tmp_path / ".mine")
    remove_abandoned(tmp_path, said.append)
    assert said == []
    assert len(list(tmp_path.iterdir())) == 4
    assert (elsewhere / "parameters/half").exists()
