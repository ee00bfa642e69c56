"""What a stage resumes from, given its directory, and what commands read an engine checkpoint through.

tests/reliability/test_world_changes.py tests the same with real runs.
"""

import json
import shutil
from contextlib import suppress
from functools import partial

import pytest

from growctl.run import resume
from growctl.run.requests import RunFailed
from growctl.run.resume import World, as_parameters, checkpoint_to_resume
from stages.checkpoint.lineage import Lineage
from stages.checkpoint.manifest import CheckpointError, manifest_hash, verify_checkpoint
from stages.checkpoint.sealed import seal
from stages.stage_dir import converted_directory
from stages.train.skipped_data import trained_without
from tests import warm_start
from tests.growctl.runs import run
from tests.stages.checkpoints import write_checkpoint

SAVED, OTHER = World(2, 1, "none"), World(1, 3, "optimizer")
ENGINE = {"kind": "engine", "world_size": 2, "zero_stage": 1, "offload": "none"}


def saved(directory, **changes):
    """An intact engine checkpoint with those values in its manifest."""
    sealed = seal(write_checkpoint(directory).model_copy(update=ENGINE | changes))
    (directory / "manifest.json").write_text(sealed.model_dump_json())
    return directory


def converted(step):
    lineage = Lineage(operation="train", parent=manifest_hash(step))
    write_checkpoint(converted_directory(step), lineage=lineage)
    return converted_directory(step)


@pytest.fixture
def conversions(monkeypatch):
    """Records the checkpoints to convert, without converting them."""
    made = []

    def convert(checkpoint, target, log):
        made.append(checkpoint.name)
        assert target.name == converted_directory(checkpoint).name
        return target

    monkeypatch.setattr(resume, "convert", convert)
    return made


def test_the_newest_checkpoint_of_the_same_world_is_used_unchanged_and_leftovers_are_removed(tmp_path, conversions):
    assert checkpoint_to_resume(tmp_path / "empty", SAVED, pytest.fail) is None
    older, newest = saved(tmp_path / "step_00000010"), saved(tmp_path / "step_00000020")
    for name in ("step_00000020", "final", "converted_00000010"):
        (tmp_path / f".{name}.incomplete/engine").mkdir(parents=True)
    (tmp_path / ".step_00000005.removed").mkdir()
    assert checkpoint_to_resume(tmp_path, SAVED, pytest.fail) == newest
    assert sorted(tmp_path.iterdir()) == [older, newest]
    assert conversions == []


@pytest.mark.parametrize(
    ("other", "offload"),
    [
        *((world, "none") for world in (World(1, 1, "none"), World(2, 2, "none"), World(2, 1, "optimizer"))),
        (SAVED, None),  # not recorded
    ],
    ids=str,
)
def test_a_checkpoint_of_another_world_is_converted_with_a_message(tmp_path, conversions, other, offload):
    said: list[str] = []
    newest = saved(tmp_path / "step_00000020", offload=offload)
    assert checkpoint_to_resume(tmp_path, other, said.append) == converted_directory(newest)
    assert conversions == ["step_00000020"]
    assert said == [f"step_00000020 was saved by 2 devices at ZeRO 1; converting it for {other}"]


def test_an_intact_conversion_is_reused_without_a_message_and_older_ones_are_removed(tmp_path, conversions):
    old, newest = saved(tmp_path / "step_00000010"), saved(tmp_path / "step_00000020")
    left, expected = converted(old), converted(newest)
    assert checkpoint_to_resume(tmp_path, OTHER, pytest.fail) == expected
    assert conversions == []
    assert not left.exists()


@pytest.mark.parametrize("trouble", [".safetensors", "was not made from step_00000020"])
def test_a_broken_or_foreign_conversion_is_set_aside_and_repeated(tmp_path, conversions, trouble):
    said: list[str] = []
    newest = saved(tmp_path / "step_00000020")
    if trouble == ".safetensors":
        victim = next(converted(newest).rglob("*.safetensors"))
        victim.write_bytes(victim.read_bytes()[:-1])
    else:
        write_checkpoint(converted_directory(newest))
    assert checkpoint_to_resume(tmp_path, OTHER, said.append) == converted_directory(newest)
    assert conversions == ["step_00000020"]
    assert trouble in said[0]
    assert "moved to broken-converted_00000020" in said[0]


@pytest.mark.parametrize("world", [SAVED, OTHER], ids=str)
def test_a_conversion_whose_checkpoint_broke_is_the_newest_intact_checkpoint(tmp_path, conversions, world):
    saved(tmp_path / "step_00000010")
    said: list[str] = []
    newest = saved(tmp_path / "step_00000020")
    expected = converted(newest)
    next(newest.rglob("*.safetensors")).unlink()
    assert checkpoint_to_resume(tmp_path, world, said.append) == expected
    [message] = said
    assert "moved to broken-step_00000020" in message
    assert conversions == []


@pytest.mark.slow
def test_a_failed_conversion_reports_why_and_keeps_the_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv(warm_start.VARIABLE, "1")
    (saved(tmp_path / "step_00000020") / "engine").mkdir()
    with pytest.raises(RunFailed, match=r"step_00000020 cannot be converted: .* has no optimizer states of rank 0"):
        checkpoint_to_resume(tmp_path, OTHER, print)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt", "step_00000020"]


@pytest.mark.parametrize("name", ["step_00000023", "converted_00000023"])
def test_checkpoints_trained_on_since_skipped_data_are_set_aside(tmp_path, conversions, name):
    """It was saved at step 23; later the stage was rolled back to step 20 and skipped the data of steps 20 to 25."""
    said: list[str] = []
    before = saved(tmp_path / "step_00000010")
    saved(tmp_path / name, step=23)
    assert checkpoint_to_resume(tmp_path, SAVED, said.append, partial(trained_without, [(20, 5)])) == before
    assert said == [f"{tmp_path / name} belongs to training that was rolled back; moved to broken-{name}"]
    assert (tmp_path / f"broken-{name}").is_dir()


@pytest.fixture
def step(tmp_path):
    """An engine checkpoint in a run."""
    return saved(tmp_path / "runs/tiny/stages/0-small/step_00000010")


def test_only_an_engine_checkpoint_is_converted_beside_the_output_until_the_command_ends(tmp_path, step, conversions):
    write_checkpoint(tmp_path / "runs/final")
    with as_parameters(tmp_path / "runs/final", tmp_path, pytest.fail) as path:
        assert path == tmp_path / "runs/final"
    said: list[str] = []
    output = tmp_path / "new/grown"
    with suppress(RunFailed), as_parameters(step, tmp_path / "runs", said.append, output) as path:
        assert path.name == "converted_00000010"
        assert path.parent.parent == tmp_path
        assert path.parent.name.startswith(".grown.incomplete-"), "verify --integrity lists it as unfinished"
        raise RunFailed("no")
    assert said == [f"{step} is an engine checkpoint; converting it in {path.parent}"]
    assert [path.name for path in (*tmp_path.iterdir(), *step.parent.iterdir())] == ["runs", step.name]
    assert conversions == [step.name]


def test_no_engine_checkpoint_that_is_damaged_or_outside_the_runs_directory_is_unpickled(tmp_path, step, conversions):
    copy = shutil.copytree(step, tmp_path / "elsewhere/step_00000010")
    next(step.rglob("*.safetensors")).unlink()
    for checkpoint, why in ((step, "is broken"), (copy, "outside")):
        with pytest.raises(CheckpointError, match=why), as_parameters(checkpoint, tmp_path / "runs", print):
            pass
    assert conversions == []


def test_an_engine_checkpoint_grows_and_is_compared_without_a_trace_in_its_run(two_ranks, tmp_path):
    runs = two_ranks[1]
    step = runs / "tiny/stages/1-large/step_00000050"
    before = {path: path.stat().st_mtime_ns for path in (runs / "tiny").rglob("*")}
    grown = tmp_path / "grown"
    arguments = ("tiny/large/step_00000050", "--runs-dir", runs)
    _, err = run("expand", *arguments, "--add-tokens", 4, "--output", grown)
    assert err.splitlines()[0] == f"using {step}"
    assert "is an engine checkpoint; converting it in" in err.splitlines()[1]
    assert verify_checkpoint(grown).step == 0
    assert [path.name for path in tmp_path.iterdir()] == ["grown"]
    out, _ = run("verify", arguments[0], grown, *arguments[1:], "--sequences", 2, "--context", 16, "--json")
    told = json.loads(out)["comparison"]
    assert (told["old"]["path"], told["lineage"]["operation"]) == (str(step), "expand"), "the same conversion again"
    assert told["verdict"] == "preserved"
    assert {path: path.stat().st_mtime_ns for path in (runs / "tiny").rglob("*")} == before
