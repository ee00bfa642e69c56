"""`growctl expand` and `shrink`: which layers grow, where the growth goes, and that no run takes it for its own."""

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
from model.decoder_config import decoder_config
from stages.checkpoint.directory import clear_stage, newest_checkpoint, prune
from stages.checkpoint.disk_full import DiskFull
from stages.checkpoint.manifest import manifest_hash, read_manifest
from stages.stage_dir import StagePaths
from tests.growctl.runs import wait_for
from tests.growctl.schedules import BASE, parse
from tests.stages.checkpoints import small_config, write_checkpoint
from tests.workers import REPOSITORY

RUN = Path("runs/quick")
STAGE = StagePaths(RUN / "stages/0-small")


@pytest.fixture(autouse=True)
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory of a finished stage of the run `quick` below the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GROWCTL_RUNS_DIR", raising=False)
    write_checkpoint(STAGE.final)


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def expand(*arguments: object) -> str:
    return call("expand", *arguments)


@pytest.mark.parametrize(
    ("folder", "reference"),
    [(".", "quick"), (".", "quick/small"), (".", STAGE.final), (STAGE.final, "."), (STAGE.final, "../final")],
)
def test_without_an_output_the_growth_is_beside_its_source_and_is_never_replaced(folder, reference, monkeypatch):
    growth = STAGE.directory.absolute() / "final+3"
    monkeypatch.chdir(folder)
    expand(reference, "--add-tokens", 3)
    before = manifest_hash(growth)
    assert read_manifest(growth).lineage.parent == manifest_hash(growth.with_name("final"))
    with pytest.raises(ValueError, match=r"final\+3 already exists"):
        expand(reference, "--add-tokens", 3, "--seed", 5)
    assert manifest_hash(growth) == before


@pytest.mark.parametrize("name", ["initial", "step_00000010", "converted_00000010"])
def test_the_growth_never_has_the_name_of_a_checkpoint_of_the_stage(name):
    source = STAGE.final.rename(STAGE.directory / name)
    expand(source, "--add-tokens", 3)
    known = {*STAGE.named_as_checkpoints(), *STAGE.conversions(), *STAGE.leftovers(), STAGE.initial, STAGE.final}
    [growth] = [path for path in STAGE.directory.iterdir() if path != source]
    assert growth.name.removeprefix("from_") == f"{name}+3"
    assert growth not in known


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
    with pytest.raises(DiskFull, match=r"takes 15,\d{3},\d{3},\d{3} bytes"):
        expand("quick", "--add-tokens", 9_999_999)
    assert os.listdir(STAGE.directory) == ["final"]
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


def test_tokens_are_added_to_the_layers_that_are_chosen():
    expand("quick", "--add-tokens", 8, "--add-ffn-tokens", 3, "--layers", "1, 1-1", "--output", "grown")
    before, after = (
        [(block.query.num_tokens, block.ffn.num_tokens) for block in read_manifest(path).model.blocks]
        for path in (STAGE.final, Path("grown"))
    )
    assert after == [before[0], (before[1][0] + 8, before[1][1] + 3)]


def test_a_decoder_gains_heads_units_and_width_and_neither_a_preset_nor_uneven_layers():
    shape = {"num_layers": 2, "ffn_tokens": 12, "vocab_size": 31, "hidden_size": 16, "num_heads": 2}
    write_checkpoint(Path("small"), decoder_config(**shape))
    assert "the function is unchanged" in expand("small", "--add-heads", 1, "--add-ffn-tokens", 4, "--widen", 2)
    model = read_manifest(Path("small+4+1-heads+2-times-as-wide")).model
    assert (model.hidden_size, model.num_heads, model.ffn_tokens) == (32, 5, 28)
    for wrong, said in ((("--preset", "official"), "are for a tokenformer"), (("--layers", 0), "are alike")):
        with pytest.raises(ValueError, match=said):
            expand("small", "--add-ffn-tokens", 4, *wrong)


def test_layers_are_added_between_the_others_and_taken_off_again():
    expand("quick", "--add-layers", 2, "--depth", "interleave", "--add-tokens", 3, "--seed", 5)
    source, growth = (read_manifest(STAGE.directory / name) for name in ("final", "final+3+2-layers"))
    assert growth.model.num_layers == source.model.num_layers + 2
    assert growth.lineage.growth.policy.depth == "interleave"
    call("shrink", STAGE.directory / "final+3+2-layers", "--output", "smaller")
    assert read_manifest(Path("smaller")).model == source.model


@pytest.mark.parametrize("num_layers", [2, 0])
def test_new_layers_have_the_size_that_is_asked_for_and_the_document_says_where_they_are(num_layers):
    write_checkpoint(Path("old"), small_config(num_layers=num_layers))
    size = ("--layer-tokens", 5, "--layer-ffn-tokens", 7)
    document = json.loads(expand("./old", "--add-layers", 1, *size, "--json"))
    model, growth = read_manifest(Path(document["path"])).model, document["lineage"]["growth"]
    assert (growth["new_layers"], growth["new_layer_positions"]) == (1, [num_layers])
    assert (model.blocks[-1].query.num_tokens, model.blocks[-1].ffn.num_tokens) == (5, 7)


def test_new_tokens_form_groups_of_which_some_are_read_and_the_document_has_them():
    routed = ("--groups", 4, "--read", 2, "--output", "routed")
    document = json.loads(expand(STAGE.final, "--add-tokens", 8, "--add-ffn-tokens", 12, *routed, "--json"))
    assert document["lineage"]["growth"]["policy"]["routing"] == {"groups": 4, "read": 2}
    query = read_manifest(Path("routed")).model.blocks[0].query
    assert query.num_tokens - query.num_read == 4
    assert "1 (2 of 4 groups read) 8 12 " in call("show", "routed")
    for wrong, said in ((("--groups", 2), "give both"), (("--groups", 2, "--read", 3), "read 3 is more than")):
        with pytest.raises(ValueError, match=said):
            expand("quick", "--add-tokens", 8, *wrong)
