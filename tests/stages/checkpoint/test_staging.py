"""What a killed process left behind is removed, and what another process is writing, or may be, is not."""

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

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


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is writing `new`."""
    command = [sys.executable, "-c", WRITES, str(tmp_path / "new")]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    yield process
    process.kill()
    process.communicate()


def busy(*_: object, **__: object) -> None:
    raise OSError(errno.EBUSY, "Device or resource busy")


def test_writing_a_directory_removes_what_killed_processes_left_beside_it(tmp_path):
    left(tmp_path / "other")
    left(tmp_path / "from-before-the-machine-started", boot="another")
    with whole_directory(tmp_path / "new"):
        publish_directory(tmp_path / "new")
    assert [path.name for path in tmp_path.rglob("*")] == ["new"]


def test_what_another_process_is_writing_stays_until_the_process_is_killed(tmp_path, writer):
    staging, said = staging_directory(tmp_path / "new"), list[str]()
    assert is_being_written(staging)
    remove_abandoned(tmp_path, said.append)
    with pytest.raises(CheckpointError, match=rf"growctl \(process {writer.pid} on .*\); wait until it is complete$"):
        begin_directory(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == [staging.name]
    assert said == []
    writer.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)  # dead, but its parent does not know it yet
    assert not is_being_written(staging)
    remove_abandoned(tmp_path, said.append)
    assert said == [f"removed {staging}, which a killed process left unfinished"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("changes", [{"host": "node-9"}, {"pid_namespace": "another container"}], ids=str)
def test_what_another_machine_or_container_may_be_writing_stays_and_is_named(tmp_path, changes):
    staging, said = left(tmp_path / "new", **changes), list[str]()
    with pytest.raises(CheckpointError, match=rf"complete, or remove {staging} if that process has ended$"):
        whole_directory(tmp_path / "new").__enter__()
    assert (staging / "parameters/half").exists()
    remove_abandoned(tmp_path, said.append)
    host = changes.get("host", socket.gethostname())
    assert said[0].startswith(f"left {staging}, which may still be written by process {os.getpid()} on {host} since ")
    assert said[0].endswith("; remove it if that process has ended")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"process": "one"}'])
def test_a_mark_that_names_no_process_protects_its_directory(tmp_path, text):
    staging = left(tmp_path / "new")
    (staging / WRITING_MARK).write_text(text)
    with pytest.raises(CheckpointError, match=r"by another growctl \(an unknown process\)"):
        whole_directory(tmp_path / "new").__enter__()
    assert staging.is_dir()


def test_a_mark_protects_its_directory_on_a_file_system_without_locks(tmp_path, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with whole_directory(tmp_path / "new") as staging, pytest.raises(CheckpointError, match="is being written by"):
        begin_directory(tmp_path / "new")
    assert not staging.exists()


def test_a_staging_directory_has_its_mark_from_the_first_moment_on(tmp_path, monkeypatch):
    staging, seen = staging_directory(tmp_path / "new"), []

    def looking(call: Callable[..., object]) -> Callable[..., object]:
        def looks(*arguments: object) -> object:
            seen.append(staging.exists() and not (staging / WRITING_MARK).exists())
            return call(*arguments)

        return looks

    with monkeypatch.context() as patched:
        for name in ("mkdir", "rename", "open", "replace"):
            patched.setattr(os, name, looking(getattr(os, name)))
        begin_directory(tmp_path / "new")
    assert len(seen) > 1
    assert not any(seen)
    assert is_being_written(staging)


def test_a_staging_directory_keeps_its_mark_until_it_has_its_name(tmp_path, monkeypatch):
    seen = []
    sync = directory_module.sync_path
    monkeypatch.setattr(
        directory_module, "sync_path", lambda path: (seen.append(os.path.lexists(path / WRITING_MARK)), sync(path))
    )
    with whole_directory(tmp_path / "new") as staging:
        (staging / "parameters").mkdir()
        publish_directory(tmp_path / "new")
    assert seen[:2] == [False, True], "the folder inside it has none"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["parameters"]


def test_a_copy_of_a_checkpoint_has_no_mark(tmp_path):
    write_checkpoint(tmp_path / "final")
    (tmp_path / "final" / WRITING_MARK).touch()  # its process was killed right after it had renamed the directory
    link_checkpoint(tmp_path / "final", tmp_path / "copy")
    assert not (tmp_path / "copy" / WRITING_MARK).exists()


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


def test_an_error_is_reported_even_if_its_directory_cannot_be_removed(tmp_path, monkeypatch):
    def fail() -> None:
        with whole_directory(tmp_path / "new") as staging:
            (staging / "parameters").mkdir()
            monkeypatch.setattr(shutil, "rmtree", busy)
            raise RuntimeError("the real error")

    with pytest.raises(RuntimeError, match="the real error"):
        fail()
    staging = staging_directory(tmp_path / "new")
    assert (staging / WRITING_MARK).exists(), "the next command removes it"


def test_an_interrupted_removal_is_finished_by_the_next_command(tmp_path, monkeypatch):
    staging = left(tmp_path / "new")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", busy)
        remove_abandoned(tmp_path)
    assert (staging / WRITING_MARK).exists()
    remove_abandoned(tmp_path)
    assert not staging.exists()


def test_unmarked_directories_links_and_folders_of_the_user_stay(tmp_path):
    staging_directory(tmp_path / "unmarked").mkdir()
    elsewhere = left(tmp_path / "elsewhere/new")
    staging_directory(tmp_path / "link").symlink_to(elsewhere)
    (tmp_path / ".mine").mkdir()
    shutil.copy(elsewhere / WRITING_MARK, tmp_path / ".mine")
    said: list[str] = []
    remove_abandoned(tmp_path, said.append)
    assert said == []
    assert len(list(tmp_path.iterdir())) == 4
    assert (elsewhere / "parameters/half").exists()
