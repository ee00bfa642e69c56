"""What lies under a runs directory is told apart by its name."""

from pathlib import Path

from growctl.runs_dir import RunsPaths
from stages.stage_dir import StagePaths


def test_a_stage_knows_its_checkpoints_by_their_steps(tmp_path: Path) -> None:
    stage = StagePaths(tmp_path)
    for name in ("step_00000020", "step_00000003", "step_123456789", "step_new"):
        (tmp_path / name).mkdir()
    stage.step(7).touch()
    assert list(stage.checkpoints()) == [3, 20, 123456789]
    assert stage.step(20) == stage.checkpoints()[20]
    assert {path.name for path in stage.named_as_checkpoints()} == {path.name for path in tmp_path.iterdir()}


def test_stages_are_found_in_their_order_and_other_folders_are_none(tmp_path: Path) -> None:
    run = RunsPaths(tmp_path).run("quick")
    for name in ("10-last", "9-large", "0-a-b", "notes", "x-1"):
        (run.stages / name).mkdir(parents=True)
    assert [(index, name) for index, name, _ in run.stages_found()] == [(0, "a-b"), (9, "large"), (10, "last")]
    assert next(stage for *_, stage in run.stages_found()).directory == run.stage(0, "a-b").directory
