"""Checkpoint directories are whole or not there; any damage to their files is found, and they are set aside."""

import errno
import os
import re
from pathlib import Path

import pytest

from stages.checkpoint import sealed
from stages.checkpoint.directory import newest_checkpoint, whole_directory
from stages.checkpoint.files import hash_file, sync_path, write_file
from stages.checkpoint.manifest import CheckpointError, verify_checkpoint
from stages.stage_dir import staging_directory
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
