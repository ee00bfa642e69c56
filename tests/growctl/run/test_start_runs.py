"""Real runs that start from a checkpoint: one that grows it, one that trains an expanded one on."""

import shutil
from pathlib import Path

import pytest
from rich.console import Console

from growctl.analysis.judge import MORE_BUDGETS
from growctl.analysis.results import results
from growctl.ladder.load import load_schedule
from growctl.ladder.stage_plans import plan_stages
from growctl.report.setup import growths
from growctl.run.screen import Screen
from growctl.run.start import Start
from growctl.runs.find import find_runs
from model.policy import EXACT_GROWTH
from model.tokenformer_config import TokenformerConfig
from stages.checkpoint.manifest import CheckpointError, manifest_hash, read_manifest, verify_checkpoint
from stages.data.dataset import read_dataset_manifest
from stages.metrics import read_metrics
from stages.stage_dir import StagePaths
from tests import warm_start
from tests.growctl.bases import change_manifest
from tests.growctl.runs import SCHEDULE, final_hashes, losses, made_once, run, run_here, write_schedule

pytestmark = pytest.mark.trains

SHORT = ("stages.0.train_steps=12", "stages.1.train_steps=6", "evaluation.every=10")
ONE_SIZE = (
    "stages=[{name: more, attention_tokens: 16, ffn_tokens: 40, train_steps: 8},"
    "{name: wider, train_steps: 4, batch_size: 16}]"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with: a run `base`, its first stage `expanded`, and runs that start from either."""

    def make(folder: Path) -> None:
        schedule, runs = write_schedule(folder, SCHEDULE), folder / "runs"
        run("run", schedule, *SHORT, "--name", "base", "--runs-dir", runs)
        added = ("--add-tokens", "8", "--add-ffn-tokens", "24", "--output", folder / "expanded")
        run("expand", runs / "base/stages/0-small/final", *added)
        grown = (
            *SHORT,
            "start={run: base, stage: small}",
            "stages.0.attention_tokens=12",
            "controls=[{kind: ungrown}]",
        )
        on = (ONE_SIZE, f"start.checkpoint={folder}/expanded", "seed=4")
        for name, settings in (("grown", grown), ("on", on)):
            out, _ = run("run", schedule, *settings, "--name", name, "--runs-dir", runs)
            (folder / f"{name}.txt").write_text(out)

    return made_once(tmp_path_factory, "runs_with_a_start", make)


def test_the_first_stage_grows_the_checkpoint_without_a_jump_and_goes_on_in_its_data(trained: Path) -> None:
    runs = trained / "runs"
    before, after = losses(runs / "base")["0-small", 12, "final"], losses(runs / "grown")["0-small", 0, "after_growth"]
    assert after == pytest.approx(before, abs=EXACT_GROWTH)
    manifest = read_manifest(runs / "grown/stages/0-small/initial")
    assert manifest.lineage.parent == manifest_hash(runs / "base/stages/0-small/final")
    assert manifest.model.blocks[0].query.num_tokens == 12
    said = (trained / "grown.txt").read_text()
    assert "moved the validation loss" not in said
    assert "data from sample 96, where the start checkpoint stopped" in said
    final = read_manifest(runs / "grown/stages/1-large/final")
    assert final.samples_seen == (12 + 12 + 6) * 8
    assert final.model.newest_generation == 2
    assert final.lineage.cost
    assert final.lineage.cost.steps == 30
    operations = ["init", "train", "expand", "train", "expand", "train"]
    assert [entry.operation for entry in final.lineage.history] == operations


def test_the_report_counts_from_the_base_on_and_shows_the_jump_of_the_first_stage(trained: Path) -> None:
    grown = next(run for run in find_runs(trained / "runs") if run.name == "grown")
    base, final = (
        read_manifest(trained / "runs" / path / "final").lineage.cost
        for path in ("base/stages/0-small", "grown/stages/1-large")
    )
    assert base
    assert final
    assert grown.base
    assert (grown.base.flops, grown.base.run) == (base.flops.total, "base, stage small")
    assert grown.stages[0].cumulative_flops == grown.stages[0].flops
    assert base.flops.total + grown.cumulative_flops == pytest.approx(final.flops.total)
    assert grown.stages[0].jump == pytest.approx(0, abs=EXACT_GROWTH)


def test_a_base_of_another_seed_has_no_recipe_and_one_that_read_other_texts_no_tokens(trained: Path) -> None:
    grown, on = (next(run for run in find_runs(trained / "runs") if run.name == name) for name in ("grown", "on"))
    assert grown.base
    assert on.base
    assert (bool(grown.base.recipe), bool(grown.base.tokens), on.base.recipe) == (True, True, None)
    schedule = load_schedule(str(trained / "runs/grown/schedule.yaml"), runs_dir=trained / "runs")
    assert schedule.base
    start = Start(schedule, schedule.base.model_copy(update={"read_others": True}), trained / "runs")
    [dataset] = (trained / "runs/.datasets").glob("*/manifest.json")
    assert start.entry(read_dataset_manifest(dataset.parent)).tokens is None


def test_the_checkpoint_trained_on_at_its_own_size_is_the_opponent_that_decides(trained: Path) -> None:
    runs = {run.name: run for run in find_runs(trained / "runs")}
    ladder, [verdict] = runs["grown"], results([runs["grown"], runs["grown-control-ungrown"]]).headlines
    assert (verdict.kind, verdict.missing) == ("ungrown", MORE_BUDGETS)
    assert verdict.ladder_side
    assert verdict.ladder_side.costs["flops"] == pytest.approx(sum(stage.flops for stage in ladder.stages))
    read = read_manifest(trained / "runs/base/stages/0-small/final").lineage.cost
    assert read
    assert verdict.ladder_side.train_tokens == read.tokens + sum(stage.train_tokens for stage in ladder.stages)
    assert verdict.ladder_side.epochs
    final = read_manifest(trained / "runs/grown-control-ungrown/stages/0-ungrown/final")
    assert final.model == read_manifest(trained / "runs/base/stages/0-small/final").model
    assert [entry.operation for entry in final.lineage.history] == ["init", "train", "train"]


def test_an_expanded_checkpoint_is_trained_on_from_its_own_files_and_ramped_in(trained: Path) -> None:
    stage = trained / "runs/on/stages/0-more"
    assert manifest_hash(stage / "initial") == manifest_hash(trained / "expanded")
    name = next(iter(read_manifest(stage / "initial").files))
    assert (stage / "initial" / name).samefile(trained / "expanded" / name)
    first = next(r for r in read_metrics(stage / "metrics.jsonl") if r["event"] == "evaluation")
    before = losses(trained / "runs/base")["0-small", 12, "final"]
    assert (first["point"], first["loss"]) == ("after_growth", pytest.approx(before, abs=EXACT_GROWTH))
    said = (trained / "on.txt").read_text()
    assert "data from sample 0, because the start checkpoint was trained with another seed" in said
    final = read_manifest(stage / "final")
    assert final.samples_seen == 8 * 8
    assert (final.group_steps["generation-0-decay"], final.group_steps["generation-1-decay"]) == (20, 8)
    assert {g.key_ramp for g in final.model.blocks[0].query.generations} == {1.0}


def test_a_stage_of_the_same_size_trains_on_at_its_own_batch_without_a_growth(trained: Path) -> None:
    runs, stages = trained / "runs", trained / "runs/on/stages"
    before, after = (read_manifest(stages / name / "final") for name in ("0-more", "1-wider"))
    assert manifest_hash(stages / "1-wider/initial") == manifest_hash(stages / "0-more/final")
    assert after.model == before.model
    assert after.samples_seen == 8 * 8 + 4 * 16
    assert after.group_steps == {name: steps + 4 for name, steps in before.group_steps.items()}
    found = losses(runs / "on")
    assert found["1-wider", 0, "start"] == pytest.approx(found["0-more", 8, "final"], abs=EXACT_GROWTH)
    on = next(run for run in find_runs(runs) if run.name == "on")
    assert growths(on) == ()
    assert [stage.jump for stage in on.stages] == [None, None]
    assert "wider" in run_here("report", "on", "--runs-dir", runs)[0]


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """A folder with copies of `runs` and `expanded`, and a schedule."""
    for name in ("runs", "expanded"):
        shutil.copytree(trained / name, tmp_path / name)
    write_schedule(tmp_path)
    return tmp_path


def command(folder: Path, start: Path, name: str) -> tuple[object, ...]:
    """The command of the run `on`, which starts from `start`, under another name."""
    settings = (ONE_SIZE, f"start.checkpoint={start}", "seed=4")
    return "run", folder / "tiny.yaml", *settings, "--runs-dir", folder / "runs", "--name", name


def test_a_finished_first_stage_no_longer_needs_the_checkpoint_but_an_unbegun_one_does(trained: Path, copied: Path):
    hashes = final_hashes(copied / "runs/on")
    shutil.rmtree(copied / "runs/base")
    shutil.rmtree(copied / "runs/on/stages/0-more/final")
    out, _ = run(*command(copied, trained / "expanded", "on"))
    assert "starting from" not in out
    assert final_hashes(copied / "runs/on") == hashes
    parameter = next((copied / "expanded/parameters").iterdir())
    data = bytearray(parameter.read_bytes())
    data[-3] ^= 1
    parameter.unlink()
    parameter.write_bytes(data)
    _, err = run_here(*command(copied, copied / "expanded", "bad"), expect=2)
    assert "does not have the hash in the manifest" in err
    assert not (copied / "runs/bad").exists()


def test_a_run_without_its_initial_refuses_a_checkpoint_that_changed_or_is_gone(trained: Path, copied: Path) -> None:
    own, expanded = copied / "runs/on/schedule.yaml", copied / "expanded"
    own.write_text(own.read_text().replace(str(trained / "expanded"), str(expanded)))
    shutil.rmtree(copied / "runs/on/stages/0-more")
    for change in (lambda: change_manifest(expanded, samples_seen=5), lambda: shutil.rmtree(expanded)):
        change()
        _, err = run_here(*command(copied, expanded, "on"), expect=2)
        assert "is gone or has changed since this run was started" in err


@pytest.mark.parametrize("attention_tokens", [8, 12])
def test_an_engine_checkpoint_is_converted_and_grown_or_trained_on(trained, tmp_path, monkeypatch, attention_tokens):
    monkeypatch.setenv(warm_start.VARIABLE, "1")
    [step] = (trained / "runs/base/stages/0-small").glob("step_*")
    stages = f"stages=[{{name: more, attention_tokens: {attention_tokens}, ffn_tokens: 16, train_steps: 4}}]"
    schedule = load_schedule(str(write_schedule(tmp_path)), [stages, f"start.checkpoint={step}"])
    start, stage = Start.of(schedule, trained / "runs"), StagePaths(tmp_path / "0-more")
    assert start
    stage.directory.mkdir()
    start.check()
    start._write_initial(plan_stages(schedule)[0], stage, Screen(Console()))
    initial = verify_checkpoint(stage.initial)
    assert (initial.kind, initial.samples_seen) == ("parameters", 10 * 8)
    assert isinstance(initial.model, TokenformerConfig)
    assert initial.model.blocks[0].query.num_tokens == attention_tokens
    assert initial.group_steps["generation-0-decay"] == 10
    assert not stage.converted_start.exists()
    with pytest.raises(CheckpointError):
        Start(schedule, start.base, tmp_path).check()
