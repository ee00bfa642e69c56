"""Real runs under each growth policy: what a stage trains, records and results in."""

import json

import pytest
import torch

from growctl.ladder.load import load_resolved
from growctl.runs.find import find_runs
from model.config import parameter_shapes
from model.flops import training_flops_per_token
from model.parameter_names import generation_of
from model.policy import EXACT_GROWTH
from stages.checkpoint.manifest import read_manifest
from stages.checkpoint.parameters import load_model, read_parameter
from stages.metrics import read_metrics
from tests.growctl.runs import SCHEDULE, as_killed_at, final_hashes, losses, run, write_schedule

pytestmark = pytest.mark.trains

SHORT = ("stages.0.train_steps=12", "stages.1.train_steps=15", "evaluation.every=10")
TRANSFORMER = """
  - {name: small, train_steps: 12}
  - {name: large, hidden_size: 64, num_layers: 3, train_steps: 15}
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
    assert small.flops == pytest.approx(
        small.train_tokens * training_flops_per_token(first.model, attended["32"]).total
    )
    # The ladder's decay follows the steps that were trained, 20 and 60: it covers the last fifth of them.
    spec = json.loads((whole / "stages/1-large/spec.json").read_text())
    assert (spec["learning_rate"]["first_step"], spec["learning_rate"]["total_steps"]) == (20, 80)
    assert "stage small" not in run(*command, tmp_path / "whole")[0]


def test_a_transformer_grows_in_width_and_depth_without_a_jump(tmp_path):
    text = SCHEDULE[: SCHEDULE.index("\n  - {name: small")] + TRANSFORMER + SCHEDULE[SCHEDULE.index("training:") :]
    schedule = write_schedule(tmp_path, text.replace("model: {", "model: {family: transformer, "))
    run("run", schedule, "evaluation.every=10", "growth.copy_noise=0.3", "--runs-dir", tmp_path)
    found = losses(tmp_path / "tiny")
    assert found["1-large", 0, "after_growth"] == pytest.approx(found["0-small", 12, "final"], abs=EXACT_GROWTH)
    large = read_manifest(tmp_path / "tiny/stages/1-large/final")
    assert (large.model.hidden_size, large.model.num_heads, large.model.ffn_size) == (64, 4, 256)
    assert set(large.group_steps.values()) == {15}
