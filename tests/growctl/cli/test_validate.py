"""`growctl validate` has one line for every valid file and all errors of invalid ones; `growctl prepare` warns."""

import json
import re
import shutil
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


def test_prepare_always_reports_the_bad_records_skipped(tmp_path: Path) -> None:
    source = tmp_path / "texts"
    source.mkdir()
    for number in range(60):
        (source / f"{number}.txt").write_text(f"the text of {number}")
    (source / "latin.txt").write_bytes("café".encode("latin-1"))
    values = (f"data.source={source}", "data.vocab_size=300", "data.validation_fraction=0.2", "data.on_bad_record=skip")
    for _ in range(2):
        out, err = run_here("prepare", "quickstart", *values, "--runs-dir", tmp_path / "runs")
        assert f"skipped: 1 bad record (1 not UTF-8): {source}/latin.txt line 1 (not UTF-8)" in out.splitlines()
        assert re.match(r"train: \d+ documents, \d+ tokens, \d+ bytes\nvalidation: ", out)
        assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in err.splitlines())
    document = json.loads(run_here("prepare", "quickstart", *values, "--runs-dir", tmp_path / "runs", "--json")[0])
    assert document["manifest"]["skipped"]["counts"] == {"not UTF-8": 1}
    [warning] = document["warnings"]
    assert "fewer than 50 documents or 100,000 tokens" in warning
    assert f"Z warning: {warning}" in err


@pytest.mark.slow
def test_a_prepared_text_may_be_gone_for_prepare_validate_and_a_new_run(tmp_path: Path) -> None:
    text, runs = tmp_path / "text.txt", tmp_path / "runs"
    text.write_text("".join(f"line {number} of a text\n" for number in range(9000)))
    values = ("quickstart", f"data.source={text}", "data.vocab_size=300", "data.validation_fraction=0.2")
    dataset = run_here("prepare", *values, "--runs-dir", runs)[0].splitlines()[-1]
    text.unlink()
    out, err = run_here("prepare", *values, "--runs-dir", runs)
    assert out.splitlines()[-1] == dataset
    assert f"warning: {dataset}, prepared with these settings, is used without comparing its text: " in err
    run_here("run", *values, "--name", "new", "--dry-run", "--runs-dir", runs)
    run_here("validate", *values, "--runs-dir", runs)
    shutil.rmtree(dataset)
    for command in (("prepare",), ("validate",), ("run", "--name", "newer"), ("run", "--dry-run")):
        _, err = run_here(*command, *values, "--runs-dir", runs, expect=2)
        assert f"data.source: '{text}' does not exist" in err
    assert not (runs / "newer").exists()
