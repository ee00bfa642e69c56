"""The start-up benchmark detects the first step and stops what it started; its times are not tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import start_up
from stages.metrics import read_metrics
from tests.growctl.runs import SCHEDULE, write_schedule
from tests.workers import TrainingGuard


@pytest.fixture(autouse=True)
def one_thread_each(monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(start_up.__file__).parents[1]))


def processes_of(folder: Path) -> list[str]:
    """Commands that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


@pytest.mark.trains
def test_a_run_is_watched_up_to_its_first_step_and_then_stopped(tmp_path) -> None:
    schedule = str(write_schedule(tmp_path, SCHEDULE.replace("train_steps: 30", "train_steps: 20000")))
    subprocess.run([*start_up.growctl(), "prepare", schedule, "--runs-dir", tmp_path], check=True, capture_output=True)
    run = start_up.first_step(schedule, tmp_path, "watched")
    assert 0 < run["worker_seconds"] < run["seconds"]
    records = list(read_metrics(tmp_path / "watched" / "stages" / "0-small" / "metrics.jsonl"))
    steps = [record["step"] for record in records if record["event"] == "train"]
    assert steps[0] == 1, "the first step is told of by itself"
    assert records[0]["event"] == "start"
    assert not processes_of(tmp_path)


@pytest.mark.slow
def test_a_run_that_fails_ends_the_benchmark_with_its_reason(tmp_path) -> None:
    with TrainingGuard.rejection(), pytest.raises(RuntimeError, match=r"ended with exit code 2 before .*nowhere"):
        start_up.first_step("nowhere", tmp_path, "never")


def test_the_imports_of_help_are_found() -> None:
    modules = start_up.help_imports()
    assert "typer" in modules
    assert "growctl.cli.app" in modules
    assert not {"torch", "deepspeed", "matplotlib", "numpy", "pydantic"} & set(modules)


def test_the_help_of_the_benchmark_says_where_results_go() -> None:
    command = [sys.executable, "-m", "benchmarks.start_up", "--help"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"})
    assert "benchmarks/results/start_up.json" in told.stdout


def test_a_document_has_medians_and_every_run(tmp_path, monkeypatch) -> None:
    seconds = iter([9.0, 1.0, 2.0, 4.0])
    monkeypatch.setattr(start_up.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(start_up, "whole", lambda command: {"seconds": 0.5})
    monkeypatch.setattr(start_up, "first_step", lambda *_: {"seconds": next(seconds), "worker_seconds": 0.5})
    monkeypatch.setattr(start_up, "help_imports", lambda: ["os", "rich", "rich.console", "typer"])
    document = start_up.measured("quickstart", tmp_path, repetitions=3)
    assert document["median_seconds"] == {"python": 0.5, "help": 0.5, "plan": 0.5, "first_step": 2.0}
    assert [run["seconds"] for run in document["runs"]["first_step"]] == [1.0, 2.0, 4.0], "the first does not count"
    assert document["help_imports"] == {"modules": 4, "packages": ["rich", "typer"], "heavy": ["rich"]}
    json.dumps(document)
