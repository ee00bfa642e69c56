"""The gradient norms of training come from the run that a checkpoint lies in."""

from pathlib import Path

import pytest

from growctl.inspect.training import TrainingNorms, training_norms
from stages.metrics import MetricsWriter
from stages.stage_dir import StagePaths


def write_stage(directory: Path, norms: dict[int, float | None], attempt: int = 1) -> Path:
    """Records `norms` by step in a stage's directory; returns the path of its result."""
    stage = StagePaths(directory)
    directory.mkdir(parents=True, exist_ok=True)
    writer = MetricsWriter(stage.metrics, attempt)
    for step, norm in norms.items():
        writer.write("train", step, 1.0, loss=2.0, tokens_per_second=5.0, gradient_norm=norm)
    writer.close()
    return stage.final


def reject(checkpoint: Path, *steps: int, attempt: int = 1) -> None:
    """Records that the anomaly guard rejected the updates of `steps` in the stage of `checkpoint`."""
    writer = MetricsWriter(StagePaths(checkpoint.parent).metrics, attempt)
    for step in steps:
        place = {"first_step": step - 1, "num_steps": 1}
        writer.write("anomaly", step, 1.0, kind="non_finite", value=None, threshold=None, action="skip", **place)
    writer.close()


def test_the_stages_up_to_the_checkpoints_own_are_joined(tmp_path):
    first = write_stage(tmp_path / "run/stages/0-small", {10: 1.0, 20: 3.0})
    second = write_stage(tmp_path / "run/stages/1-large", {10: 2.0, 20: None})
    write_stage(tmp_path / "run/stages/2-later", {10: 9.0})
    assert training_norms(first, 20).norms == ((10, 1.0), (20, 3.0))
    assert training_norms(second, 20).norms == ((10, 1.0), (20, 3.0), (30, 2.0))


def test_a_replayed_step_counts_once(tmp_path):
    write_stage(tmp_path / "run/stages/0-small", {10: 1.0, 20: 3.0})
    final = write_stage(tmp_path / "run/stages/0-small", {20: 4.0}, attempt=2)
    assert training_norms(final, 20).norms == ((10, 1.0), (20, 4.0))


def reuse(stage: Path, checkpoint: Path, step: int) -> Path:
    """Records that a stage took over `checkpoint` of another run; returns the path of its result."""
    stage.mkdir(parents=True)
    writer = MetricsWriter(StagePaths(stage).metrics, 1)
    device = {"device": "CPU", "num_devices": 1, "precision": "bf16", "device_seconds": 1.0}
    writer.write("reused", step, 0.0, run="other", checkpoint=str(checkpoint), resumed_from=0, **device)
    writer.close()
    return StagePaths(stage).final


def test_what_a_run_took_over_is_read_where_it_was_trained(tmp_path):
    theirs = write_stage(tmp_path / "other/stages/0-small", {10: 1.0, 20: 3.0, 30: 7.0})
    between = reuse(tmp_path / "between/stages/0-small", theirs, 30)
    final = reuse(tmp_path / "run/stages/0-small", between, 20)
    later = write_stage(tmp_path / "run/stages/1-large", {10: 2.0})
    assert training_norms(final, 20).norms == ((10, 1.0), (20, 3.0))
    assert training_norms(later, 10).norms == ((10, 1.0), (20, 3.0), (30, 2.0))
    theirs.parent.rename(tmp_path / "gone")
    assert training_norms(final, 20) is None
    reuse(tmp_path / "loop/stages/0-small", tmp_path / "loop/stages/0-small/final", 20)
    assert training_norms(tmp_path / "loop/stages/0-small/final", 20) is None


def test_training_after_a_checkpoint_does_not_count(tmp_path):
    final = write_stage(tmp_path / "run/stages/0-small", {10: 1.0, 20: 3.0})
    reject(final, 7)
    later = write_stage(tmp_path / "run/stages/1-large", {10: 2.0, 20: 5.0, 30: 7.0})
    reject(later, 12, 25)
    stage = StagePaths(later.parent)
    within = training_norms(stage.step(20), 20)
    assert within.norms == ((10, 1.0), (20, 3.0), (30, 2.0), (40, 5.0))
    assert within.num_rejected == 2
    assert training_norms(stage.initial, 20) == training_norms(final, 20), "a linked initial has its parent's step"


def test_a_rejected_update_counts_once_however_often_it_is_replayed(tmp_path):
    final = write_stage(tmp_path / "run/stages/0-small", {10: 1.0})
    reject(final, 3, 8)
    reject(final, 8, attempt=2)
    assert training_norms(final, 10).num_rejected == 2


def test_rejected_updates_that_a_run_did_not_take_over_do_not_count(tmp_path):
    theirs = write_stage(tmp_path / "other/stages/0-small", {10: 1.0, 20: 3.0})
    reject(theirs, 5, 15)
    final = reuse(tmp_path / "run/stages/0-small", theirs, 10)
    assert training_norms(final, 30).num_rejected == 1


def test_a_checkpoint_outside_a_run_has_none(tmp_path):
    (tmp_path / "final").mkdir()
    assert training_norms(tmp_path / "final", 20) is None


def test_the_figures_of_known_norms():
    norms = TrainingNorms(tuple(enumerate((1.0, 2.0, 1.0, 8.0, 2.0))), 0)
    assert norms.median == 2
    assert norms.largest_ratio == 4
    assert norms.step_ratio == pytest.approx(3)  # of 2, 2, 8 and 4
    assert TrainingNorms(((0, 0.0),), 0).largest_ratio is None
