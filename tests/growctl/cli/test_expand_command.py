"""Where `growctl expand` writes if nobody says, and that nothing mistakes it for a checkpoint of the stage."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from growctl.cli.app import app
from growctl.ladder.stage_plans import plan_stages
from growctl.launch.machines import Devices
from growctl.run.requests import RunRequest, remaining_bytes
from growctl.runs.directory import steps_done
from growctl.runs.stages import read_stage
from growctl.runs.verify import find_targets
from model.config import TokenformerConfig, tokenformer_config
from model.errors import UserError
from stages.checkpoint.directory import clear_stage, newest_checkpoint, prune
from stages.checkpoint.disk_full import DiskFull
from stages.checkpoint.manifest import manifest_hash, read_manifest
from stages.stage_dir import StagePaths
from tests.growctl.runs import wait_for
from tests.growctl.schedules import BASE, parse
from tests.stages.checkpoints import write_checkpoint
from tests.workers import REPOSITORY

RUN = Path("runs/quick")
STAGE = StagePaths(RUN / "stages/0-small")


@pytest.fixture(autouse=True)
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory of a finished stage of the run `quick` below the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GROWCTL_RUNS_DIR", raising=False)
    write_checkpoint(STAGE.final)


def expand(*arguments: object, expect: int = 0) -> str:
    result = CliRunner().invoke(app, ["expand", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == expect, result.output
    return result.output


@pytest.mark.parametrize("reference", ["quick", "quick/small", RUN, STAGE.directory, STAGE.final])
def test_without_an_output_the_growth_is_beside_its_source_and_the_message_says_so(reference):
    assert "runs/quick/stages/0-small/final+3: 2.45k -> 3.6k parameters" in expand(reference, "--add-tokens", 3)
    grown = read_manifest(STAGE.directory / "final+3")
    assert grown.lineage.parent == manifest_hash(STAGE.final)


def test_a_second_growth_is_refused_before_anything_is_written():
    expand("quick", "--add-tokens", 3)
    before = manifest_hash(STAGE.directory / "final+3")
    with pytest.raises(ValueError, match=r"final\+3 already exists; choose another directory with --output"):
        expand("quick", "--add-tokens", 3, "--seed", 5)
    assert manifest_hash(STAGE.directory / "final+3") == before
    expand("quick", "--add-tokens", 4)


def test_missing_parents_of_the_output_are_created_and_removed_again_if_the_growth_fails(tmp_path, monkeypatch):
    def fail(*arguments, **keywords):
        raise UserError("no")

    with monkeypatch.context() as broken:
        broken.setattr("stages.grow.expand.write_parameters", fail)
        with pytest.raises(UserError, match="no"):
            expand("quick", "--add-tokens", 3, "--output", "a/b/c")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert "a/b/c: 2.45k -> 3.6k parameters" in expand("quick", "--add-tokens", 3, "--output", "a/b/c")
    assert os.listdir("a") == ["b"]


@pytest.mark.parametrize("reference", [".", "../final", "../../0-small/../0-small/final"])
def test_a_relative_path_is_grown_beside_the_directory_that_it_means(reference, monkeypatch):
    here = Path.cwd()
    monkeypatch.chdir(STAGE.final)
    expand(reference, "--add-tokens", 3)
    assert (here / STAGE.directory / "final+3").is_dir()


@pytest.mark.parametrize("name", ["initial", "step_00000010", "converted_00000010"])
def test_the_growth_never_has_the_name_of_a_checkpoint_of_the_stage(name):
    source = STAGE.final.rename(STAGE.directory / name)
    expand(source, "--add-tokens", 3)
    known = {*STAGE.named_as_checkpoints(), *STAGE.conversions(), *STAGE.leftovers(), STAGE.initial, STAGE.final}
    grown = [path for path in STAGE.directory.iterdir() if path != source]
    assert [path.name.removeprefix("from_") for path in grown] == [f"{name}+3"]
    assert not known & set(grown)


def test_the_run_neither_resumes_from_growths_nor_removes_or_counts_them():
    schedule = parse(BASE)
    request = RunRequest("quick", schedule, "quick")

    def seen() -> tuple[object, ...]:
        status = read_stage(STAGE, plan_stages(schedule)[0], None, [], reached=True)
        needed = remaining_bytes(request, RUN, Devices(1, "cpu", False))
        return status, needed, steps_done(schedule, RUN), newest_checkpoint(STAGE.directory, pytest.fail)

    before = seen()
    write_checkpoint(STAGE.step(10))
    expand(STAGE.step(10), "--add-tokens", 3)
    STAGE.step(10).rename("away")
    expand("quick", "--add-tokens", 3)
    assert seen() == before
    prune(STAGE.directory, keep=1)
    clear_stage(STAGE.directory)
    kept = sorted(path.name for path in STAGE.directory.iterdir())
    assert kept == ["final", "final+3", "from_step_00000010+3"]
    assert [(target.path.name, target.kind) for target in find_targets(STAGE.directory)] == [
        (name, "checkpoint") for name in kept
    ]


def test_a_growth_that_does_not_fit_on_the_disk_is_refused_before_anything_is_written(monkeypatch):
    monkeypatch.setattr("stages.checkpoint.disk_full.free_bytes", lambda path: 10**9)
    with pytest.raises(DiskFull, match=r"takes 15,\d{3},\d{3},\d{3} bytes and only 1,000,000,000 are free there"):
        expand("quick", "--add-tokens", 9_999_999)
    assert sorted(path.name for path in STAGE.directory.iterdir()) == ["final"]
    expand("quick", "--add-tokens", 30)


@pytest.mark.slow
def test_an_expand_that_was_killed_leaves_nothing_once_the_next_one_has_run():
    path = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "growctl.cli.app", "expand", "quick", "--add-tokens", "100000"]
    killed = subprocess.Popen(command, env=os.environ | path)
    unfinished = STAGE.directory / ".final+100000.incomplete"
    wait_for(lambda: any(unfinished.glob("parameters/*_tokens.1.safetensors")) or killed.poll() is not None)
    killed.send_signal(signal.SIGSTOP)
    with pytest.raises(ValueError, match=r"final\+100000 is being written by another growctl"):
        expand("quick", "--add-tokens", 100_000)
    expand("quick", "--add-tokens", 3)
    assert unfinished.is_dir()
    killed.kill()
    killed.wait()
    assert unfinished.is_dir()
    said = expand("quick", "--add-tokens", 4)
    assert f"removed {unfinished}, which a killed process left unfinished" in said
    assert sorted(path.name for path in STAGE.directory.iterdir()) == ["final", "final+3", "final+4"]


def test_layers_are_added_between_the_others_and_taken_off_again():
    said = expand("quick", "--add-layers", 2, "--depth", "interleave", "--add-tokens", 3, "--seed", 5)
    assert "final+3+2-layers: 2.45k -> " in said
    assert "(2 new layers; +3 tokens in Q, K, V and O, " in said
    assert " in the FFN of every old layer); the function is unchanged" in said
    grown = read_manifest(STAGE.directory / "final+3+2-layers")
    before = read_manifest(STAGE.final)
    assert grown.model.num_layers == before.model.num_layers + 2
    assert grown.lineage.growth.policy.depth == "interleave"
    smaller = ["shrink", str(STAGE.directory / "final+3+2-layers"), "--output", "smaller"]
    assert not CliRunner().invoke(app, smaller, catch_exceptions=False).exit_code
    assert read_manifest(Path("smaller")).model == before.model


def test_new_layers_have_the_size_that_is_asked_for_and_the_document_says_where_they_are():
    size = ["--layer-tokens", "5", "--layer-ffn-tokens", "7"]
    document = json.loads(CliRunner().invoke(app, ["expand", "quick", "--add-layers", "1", *size, "--json"]).stdout)
    grown = read_manifest(Path(document["path"])).model
    assert isinstance(grown, TokenformerConfig)
    assert document["path"] == "runs/quick/stages/0-small/final+1-layers"
    growth = document["lineage"]["growth"]
    assert (growth["new_layers"], growth["new_layer_positions"]) == (1, [grown.num_layers - 1])
    assert (grown.blocks[-1].query.num_tokens, grown.blocks[-1].ffn.num_tokens) == (5, 7)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "nothing to add; set --add-tokens, --add-ffn-tokens or --add-layers to 1 or more"),
        (["--add-layers", 1, "--layer-tokens", 5], "are the size of new layers; give both, with --add-layers"),
        (
            ["--add-tokens", 1, "--layer-tokens", 5, "--layer-ffn-tokens", 5],
            "are the size of new layers; give both, with --add-layers",
        ),
        (
            ["--add-layers", 2, "--depth", "copy-stack"],
            "depth 'copy-stack' changes the function; that needs allow_jump",
        ),
        (
            ["--add-layers", 3, "--depth", "copy-stack", "--allow-jump"],
            "needs as many new layers, or a multiple, as the model has: 2",
        ),
    ],
)
def test_layers_that_cannot_be_added_give_one_message_and_nothing_is_written(arguments, problem):
    with pytest.raises(UserError, match=problem):
        expand("quick", *arguments)
    assert sorted(path.name for path in STAGE.directory.iterdir()) == ["final"]


def test_a_model_without_layers_gains_layers_but_no_tokens():
    model = tokenformer_config(
        num_layers=0, attention_tokens=1, ffn_tokens=1, vocab_size=31, hidden_size=16, num_heads=1
    )
    write_checkpoint(Path("empty"), model)
    with pytest.raises(
        UserError, match="the model has no layers that tokens could be added to; give --add-layers alone"
    ):
        expand("empty", "--add-tokens", 3)
    with pytest.raises(UserError, match="--layer-tokens and --layer-ffn-tokens are missing"):
        expand("empty", "--add-layers", 1)
    said = expand("empty", "--add-layers", 1, "--layer-tokens", 4, "--layer-ffn-tokens", 8)
    assert "(1 new layer with 4 tokens in Q, K, V and O, 8 in the FFN)" in said
