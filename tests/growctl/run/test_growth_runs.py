"""Real runs under each growth policy, and one that releases a finished model of its first size."""

import json
from pathlib import Path

import pytest
import torch

from growctl.ladder.load import load_resolved, load_schedule
from growctl.launch.machines import Devices
from growctl.ledger.ledger import Ledger
from growctl.run.requests import RunRequest, left_to_train, remaining_bytes
from growctl.runs.find import find_runs
from growctl.runs.status import find_status
from growctl.runs.verify import find_targets
from model.flops import training_flops_per_token
from model.parameter_names import generation_of
from model.policy import EXACT_GROWTH
from model.shapes import parameter_shapes
from stages.checkpoint.manifest import manifest_hash, read_manifest
from stages.checkpoint.parameters import load_model, read_parameter
from stages.metrics import read_metrics
from stages.stage_dir import StagePaths
from tests.growctl.runs import SCHEDULE, as_killed_at, final_hashes, losses, run, run_here, write_schedule
from tests.growctl.runs.hand_made import stages_of

pytestmark = pytest.mark.trains

SHORT = ("stages.0.train_steps=12", "stages.1.train_steps=15", "evaluation.every=10")
DECODER = """
  - {name: small, ffn_tokens: 128, train_steps: 12}
  - {name: large, SIZES, num_layers: 3, train_steps: 15}
"""


def values(directory):
    """{parameter: float32 value} of a checkpoint."""
    manifest = read_manifest(directory)
    names = parameter_shapes(manifest.model)
    return {name: read_parameter(directory, manifest, name, moments=False).fp32 for name in names}


def test_the_official_growth_reports_its_jump_and_restarts_optimizer_and_learning_rate(tmp_path):
    schedule = write_schedule(tmp_path)
    out, _ = run("run", schedule, *SHORT, "growth.preset=official", "--runs-dir", tmp_path)
    found, stage = losses(tmp_path / "tiny"), tmp_path / "tiny/stages/1-large"
    jump = found["1-large", 0, "after_growth"] - found["0-small", 12, "final"]
    assert abs(jump) > EXACT_GROWTH
    assert f"growing to large moved the validation loss by {jump:+.2e} nats" in out
    assert all("Validation has" in line for line in out.splitlines() if "warning:" in line.lower())
    assert find_runs(tmp_path)[0].stages[1].jump == pytest.approx(jump)
    assert read_manifest(stage / "final").group_steps == dict.fromkeys(
        ("generation-0-decay", "generation-0-no-decay", "generation-1-decay"), 15
    )
    rates = [r["learning_rate"] for r in read_metrics(stage / "metrics.jsonl") if r["event"] == "train"]
    assert rates[0] == pytest.approx(5e-3)  # warmed up again, at step 5 of this stage
    assert rates[-1] < 1e-3


def test_frozen_generations_keep_their_bits_and_only_chosen_layers_grow(tmp_path):
    schedule = write_schedule(tmp_path)
    policy = ("growth.init=zero-value", "growth.tau=per-generation", "growth.old_tokens=freeze")
    run("run", schedule, *SHORT, *policy, "stages.1.layers=[1]", "training.precision=bf16", "--runs-dir", tmp_path)
    stages = tmp_path / "tiny/stages"
    before, after = values(stages / "1-large/initial"), values(stages / "1-large/final")
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(after[name], value) is (generation_of(name) == 0), name
    assert {name.split(".")[1] for name in after if generation_of(name) == 1} == {"1"}
    found = losses(tmp_path / "tiny")
    assert found["1-large", 0, "after_growth"] == pytest.approx(found["0-small", 12, "final"], abs=EXACT_GROWTH)
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    old, new = (load_model(stages / "1-large" / name)(tokens) for name in ("initial", "final"))
    assert not torch.equal(old, new)


def test_muon_grows_freezes_and_after_a_crash_ends_in_the_same_bits(tmp_path):
    """On two ranks, which share matrices."""
    settings = ("optimizer.name=muon", "growth.old_tokens=freeze", "launch.devices=2", "checkpoint.every=5")
    start = ("run", write_schedule(tmp_path), *SHORT, *settings, "--runs-dir")
    run(*start, tmp_path / "whole")
    whole, stages = tmp_path / "whole/tiny", tmp_path / "whole/tiny/stages"
    stage = as_killed_at(10, tmp_path / "whole", tmp_path / "killed")
    run(*start, tmp_path / "killed")
    assert final_hashes(tmp_path / "killed/tiny") == final_hashes(whole)
    assert [r["step"] for r in read_metrics(stage / "metrics.jsonl") if r["event"] == "start"] == [0, 10]
    assert read_manifest(stages / "1-large/final").group_steps == {
        "generation-0-decay": 27, "generation-0-muon": 27, "generation-0-no-decay": 27, "generation-1-muon": 15,
    }  # fmt: skip
    before, after = values(stages / "1-large/initial"), values(stages / "1-large/final")
    assert all(torch.equal(after[name], value) is (generation_of(name) == 0) for name, value in before.items())
    norms = [r["gradient_norm"] for r in read_metrics(stage / "metrics.jsonl") if r["event"] == "train"]
    assert set(norms) == {None}  # DeepSpeed reports that of the updates


def test_a_slope_ends_a_stage_early_and_a_killed_run_decides_the_same_on_packed_documents(tmp_path):
    slope = ("growth.when=slope", "growth.slope=1", "growth.slope_window=4", "evaluation.every=5", "checkpoint.every=5")
    settings = (
        "stages.0.train_steps=200",
        "stages.1.train_steps=60",
        "data.document_mask=true",
        "data.packing=best_fit",
    )
    command = ("run", write_schedule(tmp_path), *slope, *settings, "--runs-dir")
    out, _ = run(*command, tmp_path / "whole")
    assert "stage small ends at step 20: its loss falls by " in out
    as_killed_at(15, tmp_path / "whole", tmp_path / "killed", "0-small")
    again, _ = run(*command, tmp_path / "killed")
    assert "resuming from step_00000015" in again
    whole, killed = (tmp_path / name / "tiny" for name in ("whole", "killed"))
    assert final_hashes(killed) == final_hashes(whole)
    assert losses(killed) == losses(whole)
    fired = [r for r in read_metrics(whole / "stages/0-small/metrics.jsonl") if r["event"] == "trigger"]
    assert [(r["step"], r["fired"]) for r in fired] == [(5, False), (10, False), (15, False), (20, True)]
    assert fired[0]["slope"] is None
    assert 0 < fired[-1]["slope"] < fired[-1]["threshold"] == 1
    small, large = find_runs(tmp_path / "whole")[0].stages
    assert (small.train_tokens, large.train_tokens) == (20 * 8 * 32, 60 * 8 * 32)
    assert (small.finished, large.finished) == (True, True)
    first, last = (read_manifest(whole / "stages" / name / "final") for name in ("0-small", "1-large"))
    assert (first.step, last.model.document_end_id) == (20, 0)
    attended = load_resolved(whole / "schedule.yaml").data.attended_tokens
    assert attended
    per_token = training_flops_per_token(first.model, attended["32"]).total
    assert small.flops == pytest.approx(small.train_tokens * per_token)
    # The ladder's decay follows the steps that were trained, 20 and 60: it covers the last fifth of them.
    spec = json.loads((whole / "stages/1-large/spec.json").read_text())
    assert (spec["learning_rate"]["first_step"], spec["learning_rate"]["total_steps"]) == (20, 80)
    assert "stage small" not in run(*command, tmp_path / "whole")[0]


@pytest.mark.parametrize(
    ("sizes", "growth", "size", "old_steps"),
    [
        ("hidden_size: 64", "growth.copy_noise=0.3", (64, 4, 256), 15),
        ("num_heads: 3, ffn_tokens: 160", "growth.old_tokens=freeze", (32, 3, 160), 27),
    ],
)
def test_a_decoder_grows_without_a_jump_and_keeps_parameters_unless_widened(tmp_path, sizes, growth, size, old_steps):
    stages = DECODER.replace("SIZES", sizes)
    text = SCHEDULE[: SCHEDULE.index("\n  - {name: small")] + stages + SCHEDULE[SCHEDULE.index("training:") :]
    schedule = write_schedule(tmp_path, text.replace("model: {", "model: {family: decoder, "))
    run("run", schedule, "evaluation.every=10", growth, "--runs-dir", tmp_path)
    found = losses(tmp_path / "tiny")
    assert found["1-large", 0, "after_growth"] == pytest.approx(found["0-small", 12, "final"], abs=EXACT_GROWTH)
    small, large = (tmp_path / "tiny/stages" / name / "final" for name in ("0-small", "1-large"))
    manifest = read_manifest(large)
    assert (manifest.model.hidden_size, manifest.model.num_heads, manifest.model.ffn_tokens) == size
    assert {steps for name, steps in manifest.group_steps.items() if "-0-" in name} == {old_steps}
    after, is_frozen = values(large), "freeze" in growth
    assert all(torch.equal(after[name], value) is is_frozen for name, value in values(small).items())
    assert {generation_of(name) for name in after} == {0, 1}


RELEASED = (
    SCHEDULE.replace("train_steps: 30", "train_steps: 12, release: {decay: 0.5}")
    .replace("train_steps: 60", "train_steps: 10")
    .replace("every: 10, keep", "every: 4, keep")
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs directory of a ladder with a release, and of the same ladder without it, called plain."""
    folder = tmp_path_factory.mktemp("released")
    command = ("run", write_schedule(folder, RELEASED), "--runs-dir", folder / "runs")
    run(*command)
    run(*command, "stages.0.release=false", "--name", "plain", "--no-reuse")
    return folder / "runs"


def test_the_ladder_ends_in_the_same_bits_with_and_without_a_release(runs: Path) -> None:
    hashes = {name: sha256 for name, sha256 in final_hashes(runs / "tiny").items() if "/release/" not in name}
    assert hashes == final_hashes(runs / "plain")


def test_a_release_starts_from_its_stages_end_and_both_it_and_the_next_stage_read_on(runs: Path) -> None:
    stage = StagePaths(runs / "tiny/stages/0-small")
    end, release = read_manifest(stage.final), read_manifest(stage.release.final)
    assert release.lineage.parent == manifest_hash(stage.final)
    assert release.lineage.history[:-1] == end.lineage.history
    assert (end.samples_seen, release.samples_seen) == (12 * 8, (12 + 6) * 8)
    assert read_manifest(stage.directory.with_name("1-large") / "final").samples_seen == (12 + 10) * 8
    assert release.group_steps == {"generation-0-decay": 18, "generation-0-no-decay": 18}
    assert (release.model, release.step) == (end.model, 6)
    before = next(r for r in read_metrics(stage.metrics) if r.get("point") == "final")
    records = read_metrics(stage.release.metrics)
    points = {record["point"]: record["loss"] for record in records if record["event"] == "evaluation"}
    assert set(points) == {"start", "final"}
    assert points["start"] == pytest.approx(before["loss"], abs=EXACT_GROWTH)
    rates = [record["learning_rate"] for record in records if record["event"] == "train"]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(5e-3 / 6)


def test_the_cost_of_a_release_is_its_runs_but_no_later_stages(runs: Path) -> None:
    with Ledger(runs / "tiny/ledger.db", read_only=True) as ledger:
        found = [(s.name, s.branch_of, s.decayed, ledger.stage_cost(s.name).model.steps) for s in ledger.stages()]
    assert sorted(found) == [("large", None, True, 10), ("small", None, False, 12), ("small/release", "small", True, 6)]


def test_status_verify_and_dry_run_know_the_release(runs: Path) -> None:
    [tiny] = find_status(runs, ["tiny"])
    assert stages_of(tiny) == ["small done 12/12", "small/release done 6/6", "large done 10/10"]
    assert tiny.state == "finished"
    out, _ = run_here("run", runs.parent / "tiny.yaml", "--dry-run", "--runs-dir", runs)
    assert "## stage small/release: done" in out
    paths = {target.path for target in find_targets(runs / "tiny")}
    assert runs / "tiny/stages/0-small/release/final" in paths


def test_a_release_that_is_missing_is_all_that_is_left_to_train(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tiny"
    for name in ("0-small", "1-large"):
        (copy / "stages" / name).mkdir(parents=True)
        (copy / "stages" / name / "final").symlink_to(runs / "tiny/stages" / name / "final")
    schedule = load_schedule(str(runs.parent / "tiny.yaml"))
    assert [plan.name for plan in left_to_train(schedule, copy)] == ["small/release"]
    assert remaining_bytes(RunRequest("tiny", schedule, "tiny"), copy, Devices(1, "cpu", False)) > 0
    assert remaining_bytes(RunRequest("tiny", schedule, "tiny"), runs / "tiny", Devices(1, "cpu", False)) == 0


def test_a_release_of_another_run_is_reused(runs: Path) -> None:
    out, _ = run("run", runs.parent / "tiny.yaml", "--name", "again", "--runs-dir", runs)
    assert f"stage small/release: reused whole from {runs}/tiny/stages/0-small/release/final" in out
    assert final_hashes(runs / "again") == final_hashes(runs / "tiny")
