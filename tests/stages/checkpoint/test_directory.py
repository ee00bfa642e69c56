"""Checkpoint directories are whole or not there, damaged ones are set aside, and retention keeps the right ones."""

import errno
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.checkpoint import directory as retention
from stages.checkpoint import sealed
from stages.checkpoint.directory import clear_stage, newest_checkpoint, outdated, prune, whole_directory
from stages.checkpoint.files import hash_file, sync_path, write_file
from stages.checkpoint.manifest import CheckpointError, verify_checkpoint
from stages.stage_dir import StagePaths, staging_directory
from tests.stages.checkpoints import write_checkpoint


def test_leftovers_are_never_taken_for_a_checkpoint_and_an_error_while_writing_leaves_nothing(tmp_path):
    left = staging_directory(tmp_path / "step_00000010")
    left.mkdir()
    (left / "old").write_text("x")

    def write_half() -> None:
        with whole_directory(tmp_path / "step_00000010") as staging:
            assert os.listdir(staging) == [".writing"]
            (staging / "half").write_text("x")
            raise RuntimeError("disk")

    assert newest_checkpoint(tmp_path, print) is None
    with pytest.raises(RuntimeError, match="disk"):
        write_half()
    assert os.listdir(tmp_path) == []


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def link_outside(path):
    path.symlink_to(path.rename(path.parents[2] / "elsewhere"))


DAMAGES = {
    "is missing": Path.unlink,
    "bytes, not": truncate,
    "does not have the hash": flip_a_bit,
    "is a link that leads out of the directory": link_outside,
}


@pytest.mark.parametrize("message", DAMAGES)
def test_any_damage_to_any_file_is_detected_and_named(checkpoint, message):
    name = sorted(verify_checkpoint(checkpoint).files)[3]
    DAMAGES[message](checkpoint / name)
    with pytest.raises(CheckpointError, match=rf"{re.escape(name)} .*{message}"):
        verify_checkpoint(checkpoint)


def test_a_link_within_a_directory_is_accepted(checkpoint):
    path = checkpoint / min(verify_checkpoint(checkpoint).files)
    path.symlink_to(path.rename(checkpoint / "within"))
    verify_checkpoint(checkpoint)


def test_writing_replaces_a_file_so_a_hard_link_keeps_the_old_bytes(tmp_path):
    (tmp_path / "old").write_text("old")
    os.link(tmp_path / "old", tmp_path / "file")
    entry = write_file(tmp_path / "file", b"new")
    assert [(tmp_path / name).read_text() for name in ("old", "file")] == ["old", "new"]
    assert entry.sha256 == hash_file(tmp_path / "file")


def test_a_files_bytes_are_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda file: seen.append((os.fstat(file).st_size, (tmp_path / "file").exists())))
    write_file(tmp_path / "file", b"new")
    sync_path(tmp_path / "file")
    assert seen == [(3, False), (3, True)]


def test_broken_checkpoints_are_set_aside_one_by_one_without_deleting_anything(tmp_path, monkeypatch):
    for step in (10, 20, 30):
        write_checkpoint(tmp_path / f"step_{step:08d}")
    flip_a_bit(next((tmp_path / "step_00000030").rglob("*.safetensors")))
    whole, said = sealed.hash_file, list[str]()

    def hash_file(path):
        if "step_00000020" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))  # on a bad sector, as read() does, without a name
        return whole(path)

    monkeypatch.setattr(sealed, "hash_file", hash_file)
    assert newest_checkpoint(tmp_path, said.append) == tmp_path / "step_00000010"
    assert "broken-step_00000030" in said[0]
    assert re.search(r"step_00000020 is broken: .*safetensors cannot be read: Input/output error; moved to", said[1])
    assert sorted(os.listdir(tmp_path)) == ["broken-step_00000020", "broken-step_00000030", "step_00000010"]


STEPS = st.lists(st.integers(1, 40), unique=True, min_size=1, max_size=20).map(sorted)


@settings(max_examples=100)
@given(
    STEPS, st.integers(1, 3), st.none() | st.integers(2, 9), st.integers(1, 6), st.sets(st.integers(1, 40), max_size=3)
)
def test_at_every_save_the_newest_the_mth_the_trunk_and_the_one_for_a_rollback_are_kept(steps, keep, every, due, trunk):
    """However many checkpoints were saved on request. What is in the trunk does not take the place of the newest."""
    there: list[int] = []
    for number, step in enumerate(steps, start=1):
        saved = steps[:number]
        there = [kept for kept in (*there, step) if kept not in outdated((*there, step), keep, every, due, trunk)]
        others = [step for step in saved if step not in trunk]
        back = [step for step in others if step % due == 0][-1:]
        at_intervals = [step for step in others if every and step % every == 0]
        assert there == sorted({*others[-keep:], *back, *at_intervals, *trunk.intersection(saved)})
    assert outdated(steps[::-1], keep, every, due, trunk) == [step for step in steps if step not in there]


def save(stage, *steps):
    for step in steps:
        write_checkpoint(stage / f"step_{step:08d}")


def test_pruning_also_removes_leftovers_of_dead_processes(tmp_path):
    save(tmp_path, 10, 20, 30, 40)
    staging_directory(tmp_path / "step_00000035").mkdir()
    (tmp_path / ".step_00000005.removed").mkdir()
    (tmp_path / "step_notes").mkdir()
    (tmp_path / "broken-step_00000007").mkdir()
    prune(tmp_path, 1, 20)
    assert sorted(os.listdir(tmp_path)) == ["broken-step_00000007", "step_00000020", "step_00000040", "step_notes"]


def test_nothing_is_removed_while_the_newest_checkpoint_is_incomplete(tmp_path):
    save(tmp_path, 10, 20)
    victim = next((tmp_path / "step_00000020").rglob("*.safetensors"))
    for damage in (lambda: victim.write_bytes(b"x"), victim.unlink):
        damage()
        with pytest.raises(CheckpointError, match="is broken"):
            prune(tmp_path, 1)
        assert list(StagePaths(tmp_path).checkpoints()) == [10, 20]


def test_a_death_during_removal_leaves_no_incomplete_checkpoint(tmp_path, monkeypatch):
    save(tmp_path, 10, 20, 30)

    def dies(path, **_):
        next(path.rglob("*.safetensors")).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(retention.shutil, "rmtree", dies)
        with pytest.raises(KeyboardInterrupt):
            prune(tmp_path, 1)
    assert list(StagePaths(tmp_path).checkpoints()) == [30]
    newest = newest_checkpoint(tmp_path, pytest.fail)
    assert newest
    verify_checkpoint(newest)
    prune(tmp_path, 1)
    assert os.listdir(tmp_path) == ["step_00000030"]


def test_clearing_a_complete_stage_removes_leftovers_but_keeps_non_empty_stack_files(tmp_path):
    for name in (".step_00000005.incomplete/engine", ".step_00000002.removed", ".converted_00000004.incomplete"):
        (tmp_path / name).mkdir(parents=True)
    stalled, quiet = (tmp_path / "stacks" / f"attempt-{number}-rank-0.txt" for number in (1, 2))
    stalled.parent.mkdir()
    quiet.touch()
    for text, folders in (("Timeout (0:30:00)!\n", ["stacks"]), ("", [])):
        stalled.write_text(text)
        clear_stage(tmp_path)
        assert os.listdir(tmp_path) == folders
        assert stalled.exists() is bool(folders)
    assert not quiet.exists()
