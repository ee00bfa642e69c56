"""Retention keeps the right checkpoints of a stage, and a kill never leaves a partial one."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.checkpoint import directory as retention
from stages.checkpoint.directory import clear_stage, newest_checkpoint, outdated, prune
from stages.checkpoint.manifest import CheckpointError, verify_checkpoint
from stages.stage_dir import StagePaths, staging_directory
from tests.stages.checkpoints import write_checkpoint

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
