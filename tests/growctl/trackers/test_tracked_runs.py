"""The runner gives its trackers what it reads from metrics.jsonl, at whatever start of the run."""

import csv
import shutil
from pathlib import Path

import pytest

from growctl.runs_dir import RunPaths
from stages.metrics import read_metrics
from tests.growctl.runs import run_here
from tests.growctl.trackers.invented import calls, here, stand_in
from tests.growctl.trackers.stand_ins import Noting


def test_a_tracker_that_is_added_to_a_finished_run_gets_all_of_it(
    two_ranks: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here(monkeypatch)
    stand_in(monkeypatch, Noting)
    schedule, trained = two_ranks
    runs = tmp_path / "runs"
    shutil.copytree(trained, runs, symlinks=True)
    arguments = ("run", schedule, "launch.devices=2", "--runs-dir", runs)
    before = run_here(*arguments)[0]
    assert "trackers" not in before
    out, _ = run_here(*arguments, "trackers=[tensorboard]")
    assert f"trackers: tensorboard, in {runs}/.trackers unless" in out
    first, *logged, last = calls(runs)
    assert first[:4] == ["run", "tiny", "tiny", "ladder"]
    assert last == ["finish", "finished"]
    for _, name, stage in RunPaths(runs / "tiny").stages_found():
        shown = [record for record in read_metrics(stage.metrics) if record["event"] in ("train", "evaluation")]
        assert len([call for call in logged if call[:2] == ["log", name]]) == len(shown)
    run_here("report", "tiny", "--runs-dir", runs)
    rows = list(csv.DictReader((runs / "tiny/report/stages.csv").open()))
    ends = {call[1]: call[4] for call in logged if call[0] == "log"}
    assert {row["stage"]: float(row["cumulative_flops"]) for row in rows} == pytest.approx(ends)
