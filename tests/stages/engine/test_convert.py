"""Conversions on disk: which are rejected, and when they are deleted; and DeepSpeed without its compiler.

tests/stages/engine/test_engine_state.py compares the converted values bit for bit.
"""

import shutil

import pytest
from deepspeed.runtime import compiler

from stages.checkpoint.directory import clear_leftovers, newest_checkpoint, remove_converted
from stages.checkpoint.disk_full import DiskFull
from stages.checkpoint.manifest import CheckpointError
from stages.checkpoint.sealed import seal
from stages.engine.convert import convert
from stages.engine.deepspeed_api import uncompiled
from stages.stage_dir import converted_directory, staging_directory
from tests.stages.checkpoints import write_checkpoint


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path, monkeypatch):
    engine = tmp_path / "step_00000003"
    manifest = write_checkpoint(engine).model_copy(update={"kind": "engine"})
    (engine / "manifest.json").write_text(seal(manifest).model_dump_json())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12, 1000))
    needed = sum(entry.bytes for entry in manifest.files.values())
    said = rf"converted_00000003 takes {needed:,} bytes and only 1,000 are free there; nothing was written\. Free some "
    with pytest.raises(DiskFull, match=said + r"space and run the same command again$"):
        convert(engine, tmp_path / "converted_00000003")
    assert list(tmp_path.iterdir()) == [engine]


def test_only_engine_checkpoints_are_converted(tmp_path):
    write_checkpoint(tmp_path / "final")
    with pytest.raises(CheckpointError, match="final is not an engine checkpoint"):
        convert(tmp_path / "final", tmp_path / "converted_00000003")


def test_converted_checkpoints_are_deleted_after_a_newer_checkpoint_and_never_listed_as_one(tmp_path):
    for step in (10, 20):
        write_checkpoint(tmp_path / f"step_{step:08d}")
        write_checkpoint(converted_directory(tmp_path / f"step_{step:08d}"))
    staging_directory(tmp_path / "converted_00000010").mkdir()
    (tmp_path / "converted_00000010/manifest.json").unlink()  # as if killed while deleting it
    said: list[str] = []
    assert newest_checkpoint(tmp_path, said.append).name == "step_00000020"
    clear_leftovers(tmp_path)
    remove_converted(tmp_path, tmp_path / "step_00000020")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["converted_00000020", "step_00000010", "step_00000020"]
    assert said == []


def test_a_decorator_for_compiling_returns_the_plain_function_however_it_is_written():
    compile_function = compiler.compile
    with uncompiled():
        found = [compiler.compile(len), compiler.compile()(len), compiler.compile(mode="reduce-overhead")(len)]
    assert found == [len, len, len]
    assert compiler.compile is compile_function
