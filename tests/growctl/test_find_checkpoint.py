"""What people type for a checkpoint, and which checkpoint it is."""

from pathlib import Path

import pytest

from growctl.find_checkpoint import find_checkpoint
from stages.checkpoint.manifest import CheckpointError
from tests.stages.unfinished import left

STAGES = {
    "0-small": ("final", "step_00000020"),
    "0-small/release": ("final", "step_00000024"),
    "1-large": ("initial", "final"),
    "2-huge": ("initial", "step_00000010"),
}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs directory `runs` in the working directory with a run `tiny` whose last stage is unfinished."""
    for stage, checkpoints in STAGES.items():
        for name in checkpoints:
            folder = tmp_path / "runs/tiny/stages" / stage / name
            folder.mkdir(parents=True)
            (folder / "manifest.json").touch()
    (tmp_path / "runs/tiny/schedule.yaml").touch()
    left(tmp_path / "runs/tiny/stages/2-huge/final")
    left(tmp_path / "runs/tiny/stages/2-huge/step_00000030", host="node-9")
    (tmp_path / "runs/other/stages").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return Path("runs")


def found(reference: str, runs: Path) -> tuple[str, list[str]]:
    said: list[str] = []
    return str(find_checkpoint(reference, runs, said.append)), said


@pytest.mark.parametrize(
    ("reference", "checkpoint"),
    [
        ("runs/tiny/stages/0-small", "0-small/final"),
        ("runs/tiny", "1-large/final"),
        ("tiny", "1-large/final"),
        ("tiny/small", "0-small/final"),
        ("tiny/huge/initial", "2-huge/initial"),
        ("tiny/small/step_00000020", "0-small/step_00000020"),
        ("tiny/small/release", "0-small/release/final"),
    ],
)
def test_a_checkpoint_that_was_not_typed_in_full_is_found_and_named(runs, reference, checkpoint):
    path, said = found(reference, runs)
    assert path == f"runs/tiny/stages/{checkpoint}"
    [line] = said
    assert line.startswith(f"using {path}")
    assert found(path, runs) == (path, [])


TINY = "runs/tiny/stages"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("tinny", "tinny is neither a path nor a run in runs; the nearest is tiny"),
        ("tiny/smal", "runs/tiny has no 'smal'; the nearest are small, 0-small"),
        ("tiny/huge", f"has no finished stage; name a checkpoint in it, such as {TINY}/2-huge/step_00000010"),
        ("tiny/huge/final", f"run the command again, or remove {TINY}/2-huge/.final.incomplete"),
        ("tiny/huge/step_00000030", f"{TINY}/2-huge/step_00000030 is being written by another growctl ("),
        ("new", "new was left unfinished by a killed process"),
        ("other", "runs/other is not a complete checkpoint, and holds none: it has no manifest.json"),
        ("hub", "hub is a Hugging Face folder"),
        ("../tiny", "../tiny does not exist"),
    ],
)
def test_what_is_not_a_checkpoint_gets_one_message_with_what_there_is(runs, reference, message):
    left(Path("new"))
    Path("hub").mkdir()
    for name in ("config.json", "model.safetensors"):
        (Path("hub") / name).write_text("{}")
    with pytest.raises(CheckpointError) as error:
        found(reference, runs)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_without_a_finished_stage_names_what_its_newest_stage_has_and_a_path_wins_over_a_run(runs):
    for stage in ("0-small", "1-large"):
        (runs / "tiny/stages" / stage / "final/manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"tiny has no finished stage; name .*, such as .*/2-huge/step_0"):
        found("tiny", runs)
    Path("tiny").mkdir()
    Path("tiny/manifest.json").touch()
    assert found("tiny", runs) == ("tiny", [])
