"""What lies under a runs directory is told apart by its name."""

from pathlib import Path

from growctl.runs_dir import RunPaths, RunsPaths
from stages.stage_dir import StagePaths, is_checkpoint_name, is_set_aside, is_unfinished, staging_directory


def test_a_stage_knows_its_checkpoints_by_their_steps(tmp_path: Path) -> None:
    stage = StagePaths(tmp_path)
    for name in ("step_00000020", "step_00000003", "step_123456789", "step_new"):
        (tmp_path / name).mkdir()
    stage.step(7).touch()
    assert list(stage.checkpoints()) == [3, 20, 123456789]
    assert stage.step(20) == stage.checkpoints()[20]
    assert {path.name for path in stage.named_as_checkpoints()} == {path.name for path in tmp_path.iterdir()}


def test_what_died_while_it_was_written_is_left_over_and_no_checkpoint(tmp_path: Path) -> None:
    stage = StagePaths(tmp_path)
    for whole in (stage.initial, stage.converted_start, stage.final, stage.step(5), tmp_path / "converted_00000005"):
        whole.mkdir()
        staging_directory(whole).mkdir()
    names = ("initial", "start", "final", "step_00000005", "converted_00000005")
    assert {path.name for path in stage.leftovers()} == {f".{name}.incomplete" for name in names}
    assert all(is_unfinished(path) and not is_checkpoint_name(path.name) for path in stage.leftovers())
    assert is_set_aside(tmp_path / "broken-final-2")


def test_stages_are_found_in_their_order_and_other_folders_are_none(tmp_path: Path) -> None:
    run = RunsPaths(tmp_path).run("quick")
    for name in ("10-last", "9-large", "0-a-b", "notes", "x-1"):
        (run.stages / name).mkdir(parents=True)
    assert [(index, name) for index, name, _ in run.stages_found()] == [(0, "a-b"), (9, "large"), (10, "last")]
    assert next(stage for *_, stage in run.stages_found()).directory == run.stage(0, "a-b").directory


def test_only_a_run_that_left_more_than_its_schedule_has_begun(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    run.schedule.touch()
    assert not run.has_begun()
    run.ledger.touch()
    assert run.has_begun()
