"""The benchmarks of speed measure what the documentation shows, and count right; their times are not tested."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import data, generate, history, start_up
from stages.metrics import read_metrics
from tests.growctl.runs import SCHEDULE, workers_of, write_schedule
from tests.workers import REPOSITORY
from tools import results

TINY = generate.Case(generate.grown(generate.quickstart(4), (4, 16)), 2, 3)
DOCUMENTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "data": lambda folder: data.measured(folder, num_tokens=8192, turns=2, batches=2),
    "generate": lambda folder: {"rows": [{"case": "tiny"} | generate.measured(TINY, turns=2)]},
    "history": lambda folder: history.measured([50, 200]),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_documentation_shows_what_a_benchmark_measures(name, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(history, "EVENTS", 3)
    machine = {"cpu": "a CPU", "torch": "2", "python": "3"}
    found = {"date": "2026-01-02", "machine": machine} | json.loads(json.dumps(DOCUMENTS[name](tmp_path)))
    (tmp_path / f"{name}.json").write_text(json.dumps(found))
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    assert len(results.results_table(name).splitlines()) > 4


@pytest.mark.trains
def test_a_run_is_watched_up_to_its_first_step_and_then_stopped(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    schedule = str(write_schedule(tmp_path, SCHEDULE.replace("train_steps: 30", "train_steps: 20000")))
    subprocess.run([*start_up.growctl(), "prepare", schedule, "--runs-dir", tmp_path], check=True, capture_output=True)
    run = start_up.first_step(schedule, tmp_path, "watched")
    assert 0 < run["worker_seconds"] < run["seconds"]
    first, *records = read_metrics(tmp_path / "watched/stages/0-small/metrics.jsonl")
    assert first["event"] == "start"
    assert next(record["step"] for record in records if record["event"] == "train") == 1
    assert not workers_of(tmp_path)
