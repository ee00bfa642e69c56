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
    (tmp_path / "runs/.datasets").mkdir()
    monkeypatch.chdir(tmp_path)
    return Path("runs")


def found(reference: str, runs: Path) -> tuple[str, list[str]]:
    said: list[str] = []
    return str(find_checkpoint(reference, runs, said.append)), said


@pytest.mark.parametrize(
    ("reference", "checkpoint"),
    [
        ("runs/tiny/stages/0-small", "runs/tiny/stages/0-small/final"),
        ("runs/tiny", "runs/tiny/stages/1-large/final"),
        ("tiny", "runs/tiny/stages/1-large/final"),
        ("tiny/small", "runs/tiny/stages/0-small/final"),
        ("tiny/0-small/", "runs/tiny/stages/0-small/final"),
        ("runs/tiny/small", "runs/tiny/stages/0-small/final"),
        ("tiny/huge/initial", "runs/tiny/stages/2-huge/initial"),
        ("tiny/small/release", "runs/tiny/stages/0-small/release/final"),
        ("tiny/small/release/final", "runs/tiny/stages/0-small/release/final"),
        ("tiny/0-small/release/step_00000024", "runs/tiny/stages/0-small/release/step_00000024"),
        ("runs/tiny/small/release/final", "runs/tiny/stages/0-small/release/final"),
        ("runs/tiny/stages/0-small/release", "runs/tiny/stages/0-small/release/final"),
        ("tiny/small/step_00000020", "runs/tiny/stages/0-small/step_00000020"),
    ],
)
def test_a_checkpoint_that_was_not_typed_in_full_is_found_and_named(runs, reference, checkpoint):
    path, said = found(reference, runs)
    assert path == checkpoint
    assert len(said) == 1
    assert said[0].startswith(f"using {checkpoint}")


def test_the_path_of_a_checkpoint_is_taken_without_a_message(runs):
    assert found("runs/tiny/stages/2-huge/step_00000010", runs) == ("runs/tiny/stages/2-huge/step_00000010", [])


def test_a_path_wins_over_a_run_of_the_same_name(runs):
    Path("tiny").mkdir()
    Path("tiny/manifest.json").touch()
    assert found("tiny", runs) == ("tiny", [])


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("tinny", "tinny is neither a path nor a run in runs; the nearest is tiny"),
        ("zebra", "zebra is neither a path nor a run in runs; the nearest is other"),
        ("tiny/smal", "runs/tiny has no 'smal'; the nearest are small, 0-small"),
        (
            "tiny/huge",
            "2-huge has no finished stage; name a checkpoint in it, such as runs/tiny/stages/2-huge/step_00000010",
        ),
        ("tiny/huge/step_00000020", "runs/tiny/stages/2-huge has no 'step_00000020'; the nearest is step_00000010"),
        ("tiny/small/releas", "runs/tiny/stages/0-small has no 'releas'; the nearest is release"),
        (
            "tiny/small/release/step_00000025",
            "runs/tiny/stages/0-small/release has no 'step_00000025'; the nearest is step_00000024",
        ),
        ("tiny/huge/release/final", "runs/tiny/stages/2-huge has no 'release'; the nearest are "),
        (
            "tiny/huge/final",
            "runs/tiny/stages/2-huge/final was left unfinished by a killed process; run the command again, or remove "
            "runs/tiny/stages/2-huge/.final.incomplete",
        ),
        ("tiny/huge/step_00000030", "runs/tiny/stages/2-huge/step_00000030 is being written by another growctl ("),
        ("other", "runs/other is not a complete checkpoint, and holds none: it has no manifest.json"),
        ("other/small", "runs/other has no 'small'; it is empty"),
        ("runs/.datasets", "runs/.datasets is not a complete checkpoint, and holds none: it has no manifest.json"),
        ("runs/tiny/schedule.yaml", "runs/tiny/schedule.yaml is not a complete checkpoint"),
        ("runs/tiny/stages/1-large/step_00000001", "runs/tiny has no 'stages'; the nearest are "),
        ("../tiny", "../tiny does not exist"),
        ("x" * 5000, "is neither a path nor a run in runs"),
        ("", ". is not a complete checkpoint"),
    ],
    ids=lambda value: value[:40],
)
def test_what_is_not_a_checkpoint_gets_one_message_with_what_there_is(runs, reference, message):
    with pytest.raises(CheckpointError) as error:
        found(reference, runs)
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_run_without_a_finished_stage_names_what_its_newest_stage_has(runs):
    for stage in ("0-small", "1-large"):
        (runs / "tiny/stages" / stage / "final/manifest.json").unlink()
    with pytest.raises(
        CheckpointError,
        match=r"runs/tiny has no finished stage; name a checkpoint in it, such as .*/2-huge/step_0",
    ):
        found("tiny", runs)


def test_a_hugging_face_folder_is_named_as_such_with_what_import_reads(runs, tmp_path):
    (tmp_path / "hub").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "hub" / name).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"hub is a Hugging Face folder .* `growctl import official --help`"):
        found(str(tmp_path / "hub"), runs)


def test_an_unfinished_directory_is_not_a_complete_checkpoint(runs):
    (runs / "tiny/stages/0-small/step_00000030").mkdir()
    with pytest.raises(CheckpointError, match="step_00000030 is not a complete checkpoint, and holds none"):
        found("runs/tiny/stages/0-small/step_00000030", runs)


def test_without_a_runs_directory_the_message_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="tiny is neither a path nor a run in runs; it is empty"):
        found("tiny", Path("runs"))
