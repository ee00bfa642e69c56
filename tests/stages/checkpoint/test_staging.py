"""What a killed process left behind is removed, and what another process is writing is not."""

import fcntl
from pathlib import Path

import pytest

from stages.checkpoint.directory import publish_directory, whole_directory
from stages.checkpoint.manifest import CheckpointError
from stages.checkpoint.staging import is_being_written, marked_as_written, remove_abandoned
from stages.stage_dir import WRITING_MARK, staging_directory


def killed(directory: Path) -> Path:
    """The staging directory of `directory` as a killed process leaves it."""
    staging = staging_directory(directory)
    (staging / "parameters").mkdir(parents=True)
    (staging / "parameters/half").touch()
    (staging / WRITING_MARK).touch()
    return staging


def test_writing_a_directory_removes_what_killed_processes_left_beside_it(tmp_path: Path) -> None:
    killed(tmp_path / "other")
    with whole_directory(tmp_path / "new"):
        publish_directory(tmp_path / "new")
    assert [path.name for path in tmp_path.rglob("*")] == ["new"]


def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    staging = killed(tmp_path / "new")
    with (staging / WRITING_MARK).open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        assert is_being_written(staging)
        assert remove_abandoned(tmp_path) == []
        with pytest.raises(CheckpointError, match="new is being written by another growctl; wait until it is complete"):
            whole_directory(tmp_path / "new").__enter__()
    assert not is_being_written(staging)
    assert remove_abandoned(tmp_path) == [staging]


def test_unmarked_directories_links_and_folders_of_the_user_stay(tmp_path: Path) -> None:
    staging_directory(tmp_path / "of-a-worker").mkdir()
    elsewhere = killed(tmp_path / "elsewhere/new")
    staging_directory(tmp_path / "link").symlink_to(elsewhere)
    (tmp_path / ".mine").mkdir()
    (tmp_path / ".mine" / WRITING_MARK).touch()
    assert remove_abandoned(tmp_path) == []


def test_the_mark_is_locked_from_the_first_moment_and_gone_in_the_end(tmp_path: Path) -> None:
    with marked_as_written(tmp_path):
        assert is_being_written(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [WRITING_MARK]
    assert not list(tmp_path.iterdir())


def test_without_locks_a_directory_is_written_unmarked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("stages.checkpoint.staging.fcntl.flock", no_locks)
    with marked_as_written(tmp_path):
        assert not list(tmp_path.iterdir())
