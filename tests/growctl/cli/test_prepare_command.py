"""`growctl prepare` describes the dataset that it prepared."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.growctl.runs import run_here


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
