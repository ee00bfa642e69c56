"""The gradient norms of training come from the run that a checkpoint lies in."""

from pathlib import Path

import pytest

from growctl.inspect.training import TrainingNorms, training_norms
from stages.metrics import MetricsWriter
from stages.stage_dir import StagePaths
from tests.stages.test_metrics import TRAIN


def write_stage(directory: Path, norms: dict[int, float | None], attempt: int = 1) -> Path:
    """Records `norms` by step in a stage's directory; returns the path of its result."""
    stage = StagePaths(directory)
    directory.mkdir(parents=True, exist_ok=True)
    writer = MetricsWriter(stage.metrics, attempt)
    for step, norm in norms.items():
        writer.write("train", step, 1.0, **(TRAIN | {"gradient_norm": norm}))
    writer.close()
    return stage.final


def test_the_stages_up_to_the_checkpoints_own_are_joined(tmp_path):
    first = write_stage(tmp_path / "run/stages/0-small", {10: 1.0, 20: 3.0})
    second = write_stage(tmp_path / "run/stages/1-large", {10: 2.0, 20: None})
    write_stage(tmp_path / "run/stages/2-later", {10: 9.0})
    assert training_norms(first, 30).norms == ((10, 1.0), (20, 3.0))
    assert training_norms(second, 30).norms == ((10, 1.0), (20, 3.0), (30, 2.0))


def test_a_replayed_step_counts_once(tmp_path):
    write_stage(tmp_path / "run/stages/0-small", {10: 1.0, 20: 3.0})
    final = write_stage(tmp_path / "run/stages/0-small", {20: 4.0}, attempt=2)
    assert training_norms(final, 30).norms == ((10, 1.0), (20, 4.0))


def reuse(stage: Path, checkpoint: Path, step: int, own: int = 0) -> Path:
    """Records that a stage took over `checkpoint` of another run, after `own` steps; returns the path of its result."""
    stage.mkdir(parents=True, exist_ok=True)
    writer = MetricsWriter(StagePaths(stage).metrics, 2 if own else 1)
    device = {"device": "CPU", "num_devices": 1, "precision": "bf16", "device_seconds": 1.0}
    writer.write("reused", step, 0.0, run="other", checkpoint=str(checkpoint), resumed_from=own, **device)
    writer.close()
    return StagePaths(stage).final


def test_what_a_run_took_over_is_read_where_it_was_trained(tmp_path):
    theirs = write_stage(tmp_path / "other/stages/0-small", {10: 1.0, 20: 3.0, 30: 7.0})
    between = reuse(tmp_path / "between/stages/0-small", theirs, 30)
    final = reuse(tmp_path / "run/stages/0-small", between, 20)
    later = write_stage(tmp_path / "run/stages/1-large", {10: 2.0})
    assert training_norms(final, 30).norms == ((10, 1.0), (20, 3.0))
    assert training_norms(later, 30).norms == ((10, 1.0), (20, 3.0), (30, 2.0))
    theirs.parent.rename(tmp_path / "gone")
    assert training_norms(final, 30) is None
    reuse(tmp_path / "loop/stages/0-small", tmp_path / "loop/stages/0-small/final", 20)
    assert training_norms(tmp_path / "loop/stages/0-small/final", 30) is None


@pytest.mark.parametrize(("step", "steps"), [(0, (10, 20)), (15, (10, 20, 30)), (20, (10, 20, 30, 40))])
def test_training_after_the_checkpoint_does_not_count(tmp_path, step, steps):
    reject(write_stage(tmp_path / "run/stages/0-small", {10: 1.0, 20: 3.0}), 12)
    final = reject(write_stage(tmp_path / "run/stages/1-large", {10: 2.0, 20: 5.0, 30: 9.0}), 5, 16, 25)
    stage = StagePaths(final.parent)
    norms = training_norms(stage.step(step), step)
    assert tuple(at for at, _ in norms.norms) == steps
    assert norms.num_rejected == {0: 1, 15: 2, 20: 3}[step]
    before = training_norms(tmp_path / "run/stages/0-small/final", 30)
    assert training_norms(stage.initial, 20) == before, "a linked initial has its parent's step"
    assert training_norms(tmp_path / "run/stages/0-small/initial", 0) is None


def reject(final: Path, *steps: int, attempt: int = 1, action: str = "skip") -> Path:
    """Records a rejected update at each of `steps` of the stage whose result is `final`."""
    writer = MetricsWriter(StagePaths(final.parent).metrics, attempt)
    for step in steps:
        values = {"kind": "non_finite", "value": None, "threshold": None, "first_step": step, "num_steps": 1}
        writer.write("anomaly", step, 1.0, action=action, **values)
    writer.close()
    return final


def test_a_rejected_update_counts_once_however_often_it_is_replayed(tmp_path):
    final = write_stage(tmp_path / "run/stages/0-small", {10: 1.0})
    reject(final, 3, 7)
    reject(final, 3, attempt=2)
    assert training_norms(final, 30).num_rejected == 2


def test_every_rollback_counts_because_other_data_follows_it(tmp_path):
    final = write_stage(tmp_path / "run/stages/0-small", {10: 1.0})
    for attempt in (1, 2):
        reject(final, 3, attempt=attempt, action="rollback")
    assert training_norms(final, 30).num_rejected == 2


def test_rejected_updates_after_what_a_run_took_over_do_not_count(tmp_path):
    theirs = reject(write_stage(tmp_path / "other/stages/0-small", {10: 1.0, 20: 3.0, 30: 7.0}), 5, 15, 25)
    final = reuse(tmp_path / "run/stages/0-small", theirs, 20)
    assert training_norms(final, 30).num_rejected == 2


def test_a_run_takes_over_only_the_steps_after_its_own(tmp_path):
    theirs = reject(write_stage(tmp_path / "other/stages/0-small", {10: 8.0, 20: 3.0}), 5, 15)
    stage = write_stage(tmp_path / "run/stages/0-small", {10: 1.0}).parent
    final = reuse(stage, theirs, 20, own=10)
    norms = training_norms(final, 30)
    assert (norms.norms, norms.num_rejected) == (((10, 1.0), (20, 3.0)), 1)


def test_a_checkpoint_outside_a_run_has_none(tmp_path):
    (tmp_path / "final").mkdir()
    assert training_norms(tmp_path / "final", 30) is None


def test_the_figures_of_known_norms():
    norms = TrainingNorms(tuple(enumerate((1.0, 2.0, 1.0, 8.0, 2.0))), 0)
    assert norms.median == 2
    assert norms.largest_ratio == 4
    assert norms.step_ratio == pytest.approx(3)  # of 2, 2, 8 and 4
    assert TrainingNorms(((0, 0.0),), 0).largest_ratio is None
