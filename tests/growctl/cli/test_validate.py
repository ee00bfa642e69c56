"""`growctl validate`: one line for every valid file, all errors of invalid ones, and the exit code."""

import json
from pathlib import Path

import pytest
import yaml

from tests.growctl.runs import run_here
from tests.growctl.schedules import BASE, TEXT, file_of

SIZES = ({"attention_tokens": 4, "ffn_tokens": 8}, {"num_layers": 4}, {"attention_tokens": 8})
STACKED = {
    "growth": {"depth": "copy-stack", "allow_jump": True},
    "stages": [{"name": f"s{number}", "train_steps": 20} | size for number, size in enumerate(SIZES)],
}
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


@pytest.mark.parametrize("command", ["validate", "run --no-controls", "prepare"])
def test_an_impossible_control_is_rejected_before_anything_is_written(tmp_path: Path, command: str) -> None:
    path = file_of(tmp_path, yaml.safe_dump(BASE | STACKED | {"controls": [{"kind": "single-jump"}]}))
    out, err = run_here(*command.split(), path, expect=2)
    assert out == ""
    message = "controls.0.kind = 'single-jump': cannot be run for this ladder, leave it out: depth 'copy-stack' cannot"
    assert err.removeprefix("growctl: ").startswith(f"{path}: {message}")
    assert [file.name for file in tmp_path.iterdir()] == ["s.yaml"]
    if command == "validate":
        possible = file_of(tmp_path, yaml.safe_dump(BASE | STACKED | {"controls": []}))
        assert run_here("validate", possible) == (f"{path}: s is valid\n", "")
