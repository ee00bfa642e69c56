"""`growctl validate`: one line for every valid file, all errors of invalid ones, and the exit code."""

import json
from pathlib import Path

import pytest

from tests.growctl.runs import run_here
from tests.growctl.schedules import BASE, TEXT, file_of

STACKED = """
name: stacked
data: {source: python-stdlib, vocab_size: 300}
model: {num_layers: 2, hidden_size: 32, num_heads: 2}
stages:
  - {name: d2, attention_tokens: 4, ffn_tokens: 8, train_steps: 20}
  - {name: d4, num_layers: 4, train_steps: 20}
  - {name: d8, attention_tokens: 8, train_steps: 20}
training: {sequence_length: 16, batch_size: 8}
learning_rate: {peak: 1e-3}
growth: {depth: copy-stack, allow_jump: true}
evaluation: {every: 10}
checkpoint: {every: 10}
"""
"""A ladder whose single growths are possible, but whose jump from the first size to the last is not."""


def changed(folder: Path, old: str, new: str, name: str = "s.yaml") -> str:
    """A schedule file: TEXT with a change."""
    assert old in TEXT
    return file_of(folder, TEXT.replace(old, new), name)


@pytest.mark.slow
def test_valid_schedules_give_one_line_each_and_invalid_ones_their_messages(tmp_path: Path) -> None:
    good = file_of(tmp_path, f"name: mine\n{TEXT}", "good.yaml")
    typo = changed(tmp_path, "ramp:", "rump:", "typo.yaml")
    shrinks = changed(tmp_path, "ffn_tokens: 8\n  train_steps", "ffn_tokens: 7\n  train_steps", "shrinks.yaml")
    files = (good, typo, "pile/tokenformer_150m", shrinks, "no_such")
    out, err = run_here("validate", *files, expect=2)
    assert out.splitlines() == [f"{good}: mine is valid", "pile/tokenformer_150m: tokenformer_150m is valid"]
    messages = (
        "growth.rump = 0.1: no such key",
        "stages.1.ffn_tokens = 7: must be 8 or more",
        "'no_such': no such file",
    )
    for line, message in zip(err.splitlines(), messages, strict=True):
        assert message in line
    results = json.loads(run_here("validate", "--json", *files, expect=2)[0])["schedules"]
    assert [(result["file"], result["valid"]) for result in results] == [(file, file in files[:3:2]) for file in files]


@pytest.mark.slow
def test_a_schedule_whose_text_is_missing_is_not_valid_and_cannot_run(tmp_path: Path) -> None:
    path, runs = changed(tmp_path, BASE["data"]["source"], "text"), ("--runs-dir", tmp_path / "runs")
    missing = f"data.source: '{tmp_path}/text' does not exist"
    for command in (("validate",), ("run", *runs), ("run", "--dry-run", *runs), ("prepare", *runs)):
        assert missing in run_here(*command, path, expect=2)[1].splitlines()[-1]
    assert not (tmp_path / "runs").exists()
    warnings = json.loads(run_here("plan", path, "--json", *runs)[0])["warnings"]
    assert any(warning.startswith(missing) for warning in warnings)


@pytest.mark.parametrize("command", ["validate", "run --no-controls", "prepare"])
def test_an_impossible_control_is_rejected_before_anything_is_written(tmp_path: Path, command: str) -> None:
    path = file_of(tmp_path, f"{STACKED}controls: [{{kind: single-jump}}]\n")
    out, err = run_here(*command.split(), path, expect=2)
    assert out == ""
    message = "controls.0.kind = 'single-jump': cannot be run for this ladder, leave it out: depth 'copy-stack' cannot"
    assert err.removeprefix("growctl: ").startswith(f"{path}: {message}")
    assert [file.name for file in tmp_path.iterdir()] == ["s.yaml"]
    if command == "validate":
        assert run_here("validate", file_of(tmp_path, STACKED)) == (f"{path}: stacked is valid\n", "")
