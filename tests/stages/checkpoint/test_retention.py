"""Retention keeps the right checkpoints of a stage, and a kill never leaves a partial one."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.checkpoint import directory as retention
from stages.checkpoint.directory import clear_stage, newest_checkpoint, outdated, prune
from stages.checkpoint.manifest import CheckpointError, verify_checkpoint
from stages.stage_dir import StagePaths, staging_directory
from tests.stages.checkpoints import write_checkpoint

steps_st = st.lists(st.integers(1, 500), unique=True, max_size=40)


def test_the_trunk_is_kept_besides_the_newest_and_does_not_take_their_place() -> None:
    there: list[int] = []
    for step in (10, 20, 23, 30, 40):
        there = [kept for kept in (*there, step) if kept not in outdated((*there, step), 2, due=10, also=(23,))]
    assert there == [23, 30, 40]


@given(steps_st, st.integers(1, 10), st.none() | st.integers(1, 60))
def test_the_newest_and_every_mth_checkpoint_are_kept_and_all_others_removed(steps, keep, every):
    gone = outdated(steps, keep, every)
    newest = set(sorted(steps)[-keep:])
    assert set(gone) == {step for step in steps if step not in newest and (every is None or step % every)}
    assert gone == sorted(gone)
    assert not steps or max(steps) not in gone


@given(st.lists(st.integers(1, 500), min_size=1, unique=True), st.integers(1, 10), st.integers(1, 60))
def test_the_checkpoint_for_a_rollback_is_kept_despite_later_saves_on_request(steps, keep, due):
    there: list[int] = []
    for step in sorted(steps):
        there.append(step)
        there = [kept for kept in there if kept not in outdated(there, keep, due=due)]
        assert max((saved for saved in steps if saved <= step and saved % due == 0), default=step) in there
    assert len(there) <= keep + 1


@given(st.integers(1, 60), st.integers(1, 5), st.none() | st.integers(1, 5))
def test_pruning_at_every_save_keeps_the_same_as_pruning_once_at_the_end(num_saves, keep, every):
    there: list[int] = []
    for step in range(1, num_saves + 1):
        there.append(step)
        there = [kept for kept in there if kept not in outdated(there, keep, every)]
    saved = range(1, num_saves + 1)
    assert there == [step for step in saved if step not in outdated(saved, keep, every)]


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
    stalled.write_text("Timeout (0:30:00)!\n")
    quiet.touch()
    clear_stage(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["stacks"]
    assert list(stalled.parent.iterdir()) == [stalled]
    stalled.write_text("")
    clear_stage(tmp_path)
    assert list(tmp_path.iterdir()) == []
