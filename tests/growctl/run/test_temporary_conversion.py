"""Commands read an engine checkpoint through a temporary conversion, which leaves nothing in its run."""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from growctl.run import resume
from growctl.run.requests import RunFailed
from growctl.run.resume import as_parameters
from stages.checkpoint.manifest import CheckpointError, sealed_manifest, verify_checkpoint
from tests.growctl.runs import run
from tests.stages.checkpoints import write_checkpoint


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A checkpoint that passes for an engine checkpoint, in a run."""
    directory = tmp_path / "runs/tiny/stages/0-small/step_00000010"
    sealed = sealed_manifest(write_checkpoint(directory).model_copy(update={"kind": "engine"}))
    (directory / "manifest.json").write_text(sealed.model_dump_json())
    return directory


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The conversions, which are not really made."""
    made: list[Path] = []

    def convert(checkpoint: Path, target: Path, log: Path) -> Path:
        made.append(target)
        target.mkdir()
        return target

    monkeypatch.setattr(resume, "convert", convert)
    return made


def test_a_checkpoint_by_parameter_is_used_as_it_is(tmp_path, made):
    write_checkpoint(tmp_path / "final")
    with as_parameters(tmp_path / "final", tmp_path, pytest.fail) as path:
        assert path == tmp_path / "final"
    assert made == []


def test_the_conversion_is_beside_the_output_and_gone_afterwards_even_if_the_command_fails(tmp_path, step, made):
    said: list[str] = []
    output = tmp_path / "new/grown"
    with suppress(RunFailed), as_parameters(step, tmp_path / "runs", said.append, output) as path:
        assert path.name == "converted_00000010"
        assert path.parent.parent == tmp_path
        assert path.parent.name.startswith(".grown.incomplete-"), "verify --integrity lists it as unfinished"
        raise RunFailed("no")
    assert said == [f"{step} is an engine checkpoint; converting it in {made[0].parent}"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]
    assert [path.name for path in step.parent.iterdir()] == [step.name]


def test_no_engine_checkpoint_that_is_damaged_or_outside_the_runs_directory_is_unpickled(tmp_path, step, made):
    copy = shutil.copytree(step, tmp_path / "elsewhere/step_00000010")
    next(step.rglob("*.safetensors")).unlink()
    for checkpoint, why in ((step, "is broken"), (copy, "outside")):
        with pytest.raises(CheckpointError, match=why), as_parameters(checkpoint, tmp_path / "runs", print):
            pass
    assert made == []


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
