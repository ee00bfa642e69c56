"""The ladder in one file computes what `growctl run` computes."""

import asyncio
from pathlib import Path

import pytest
import torch

from examples.ladder_in_one_file import Ladder, Recipe, Stage
from growctl.runs_dir import RunsPaths
from model.shapes import parameter_shapes
from stages.checkpoint.manifest import read_manifest
from stages.checkpoint.parameters import read_parameter
from stages.data.tokens import TokenSplit
from stages.metrics import read_metrics
from tests.growctl.runs import run

STAGES = (Stage(8, 16, 2, 24), Stage(16, 40, 2, 24), Stage(24, 48, 2, 24), Stage(24, 48, 4, 24))
RECIPE = Recipe(
    STAGES, vocab_size=300, width=32, num_heads=2, sequence_length=32, batch_size=8, peak=2e-3, warmup_steps=5, seed=3
)
SCHEDULE = f"""
seed: {RECIPE.seed}
data: {{source: {Path(asyncio.__file__).parent}, include: "*.py", vocab_size: {RECIPE.vocab_size}}}
model: {{num_layers: 2, hidden_size: {RECIPE.width}, num_heads: {RECIPE.num_heads}}}
stages:
  - {{name: "0", attention_tokens: 8, ffn_tokens: 16, train_steps: 24}}
  - {{name: "1", attention_tokens: 16, ffn_tokens: 40, train_steps: 24}}
  - {{name: "2", attention_tokens: 24, ffn_tokens: 48, train_steps: 24}}
  - {{name: "3", num_layers: 4, train_steps: 24}}
training: {{sequence_length: {RECIPE.sequence_length}, batch_size: {RECIPE.batch_size}, log_every: 1, precision: fp32}}
learning_rate: {{peak: {RECIPE.peak}, warmup_steps: {RECIPE.warmup_steps}, decay: {RECIPE.decay}}}
optimizer: {{weight_decay: {RECIPE.weight_decay}, gradient_clipping: {RECIPE.gradient_clipping}}}
growth: {{ramp: {RECIPE.ramp}}}
launch: {{devices: 1}}
"""


@pytest.mark.trains
def test_ladder_in_one_file_computes_what_growctl_computes(tmp_path):
    (tmp_path / "ladder.yaml").write_text(SCHEDULE)
    run("run", tmp_path / "ladder.yaml", "--runs-dir", tmp_path / "runs")
    [manifest] = RunsPaths(tmp_path / "runs").dataset_manifests()
    split = TokenSplit(manifest.parent, "train")
    ladder = Ladder(split.read(0, len(split)), RECIPE)
    for number, stage in enumerate(STAGES):
        directory = tmp_path / f"runs/ladder/stages/{number}-{number}"
        if number:
            take_over(ladder, tmp_path / f"runs/ladder/stages/{number - 1}-{number - 1}/final")
        ladder.grow(stage)
        if number:
            assert_same_state(ladder, directory / "initial")
        losses = [record["loss"] for record in read_metrics(directory / "metrics.jsonl") if record["event"] == "train"]
        assert [ladder.train_step() for _ in range(stage.steps)][:20] == pytest.approx(losses[:20], abs=1e-4)
        assert ladder.flops == read_manifest(directory / "final").lineage.cost.flops.total


def take_over(ladder, checkpoint):
    """Continues from growctl's own numbers: over a whole ladder, differences in rounding grow."""
    manifest = read_manifest(checkpoint)
    for name, parameter in ladder.model.named_parameters():
        theirs, ours = read_parameter(checkpoint, manifest, name), ladder.optimizer.state[parameter]
        torch.testing.assert_close(parameter.detach(), theirs.fp32, atol=1e-2, rtol=0, msg=name)
        parameter.data.copy_(theirs.fp32)
        ours["exp_avg"].copy_(theirs.exp_avg)
        ours["exp_avg_sq"].copy_(theirs.exp_avg_sq)


def assert_same_state(ladder, checkpoint):
    """Parameters and Adam moments right after a growth."""
    manifest, parameters = read_manifest(checkpoint), dict(ladder.model.named_parameters())
    assert set(parameters) == set(parameter_shapes(manifest.model))
    for name, parameter in parameters.items():
        theirs = read_parameter(checkpoint, manifest, name)
        moments = ladder.optimizer.state.get(parameter) or {}
        # growctl records the scale of old tokens to six digits.
        torch.testing.assert_close(parameter.detach(), theirs.fp32, atol=1e-6, rtol=5e-6, msg=name)
        for moment in ("exp_avg", "exp_avg_sq"):
            ours = moments.get(moment, torch.zeros_like(parameter))
            torch.testing.assert_close(ours, getattr(theirs, moment), atol=1e-6, rtol=0, msg=f"{name} {moment}")
