"""Directories that are whole or not there, and what reading a broken one says."""

import json
import os

import pytest

from stages.manifest import (
    CheckpointError,
    hash_file,
    newest_checkpoint,
    read_manifest,
    set_aside,
    staging_directory,
    verify_checkpoint,
    whole_directory,
    write_file,
)
from tests.stages.checkpoints import write_checkpoint


@pytest.fixture
def checkpoint(tmp_path):
    write_checkpoint(tmp_path / "final")
    return tmp_path / "final"


def test_a_finished_directory_has_its_files_their_hashes_and_no_trace_of_the_writing(checkpoint):
    manifest = verify_checkpoint(checkpoint)
    assert {p.relative_to(checkpoint).as_posix() for p in checkpoint.rglob("*") if p.is_file()} == {
        *manifest.files,
        "manifest.json",
    }
    assert os.listdir(checkpoint.parent) == ["final"]


def test_an_error_while_writing_leaves_nothing(tmp_path):
    def write_half() -> None:
        with whole_directory(tmp_path / "final") as staging:
            (staging / "half").write_text("x")
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        write_half()
    assert os.listdir(tmp_path) == []


def test_what_a_dead_writer_left_is_cleared_and_never_taken_for_a_checkpoint(tmp_path):
    left = staging_directory(tmp_path / "step_00000010")
    left.mkdir()
    (left / "old").write_text("x")
    assert newest_checkpoint(tmp_path, print) is None
    with whole_directory(tmp_path / "step_00000010") as staging:
        assert os.listdir(staging) == []


def test_an_existing_directory_is_never_overwritten(checkpoint):
    before = hash_file(checkpoint / "manifest.json")
    with pytest.raises(CheckpointError, match="exists already"):
        whole_directory(checkpoint).__enter__()
    assert hash_file(checkpoint / "manifest.json") == before


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, not"),
        (flip_a_bit, "does not have the hash"),
    ],
    ids=["removed", "truncated", "bit flipped"],
)
def test_any_damage_to_any_file_is_found_and_named(checkpoint, damage, message):
    name = sorted(read_manifest(checkpoint).files)[3]
    damage(checkpoint / name)
    with pytest.raises(CheckpointError, match=message) as error:
        verify_checkpoint(checkpoint)
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("\xff", "cannot be read"),
        ('{"kind": "parameters"}', "cannot be read: model"),
        (None, "has no manifest.json"),
    ],
)
def test_a_broken_or_missing_manifest_is_one_sentence(checkpoint, text, message):
    if text is None:
        (checkpoint / "manifest.json").unlink()
    else:
        (checkpoint / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=message):
        read_manifest(checkpoint)


def test_a_file_is_no_checkpoint_and_nothing_does_not_exist(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="file is not a checkpoint"):
        read_manifest(tmp_path / "file")
    with pytest.raises(CheckpointError, match="nothing does not exist"):
        read_manifest(tmp_path / "nothing")


def test_a_manifest_from_the_future_is_refused(checkpoint):
    data = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").write_text(json.dumps(data | {"format_version": 99}))
    with pytest.raises(CheckpointError, match="format version 99; this growctl reads up to 2"):
        read_manifest(checkpoint)


def test_broken_checkpoints_are_set_aside_one_by_one_and_nothing_is_deleted(tmp_path):
    for step in (10, 20, 30):
        write_checkpoint(tmp_path / f"step_{step:08d}")
    for step in (20, 30):
        flip_a_bit(next((tmp_path / f"step_{step:08d}").rglob("*.safetensors")))
    said = []
    assert newest_checkpoint(tmp_path, said.append).name == "step_00000010"
    assert len(said) == 2
    assert "broken-step_00000030" in said[0]
    assert sorted(os.listdir(tmp_path)) == ["broken-step_00000020", "broken-step_00000030", "step_00000010"]


def test_setting_aside_twice_keeps_both(tmp_path):
    for text in ("first", "second"):
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / text).touch()
        set_aside(tmp_path / "x")
    assert sorted(p.name for p in tmp_path.glob("*/*")) == ["first", "second"]


def test_a_file_is_replaced_not_written_into_so_a_hard_link_keeps_the_old_bytes(tmp_path):
    (tmp_path / "old").write_text("old")
    os.link(tmp_path / "old", tmp_path / "file")
    entry = write_file(tmp_path / "file", b"new")
    assert (tmp_path / "old").read_text() == "old"
    assert (tmp_path / "file").read_text() == "new"
    assert entry.sha256 == hash_file(tmp_path / "file")
