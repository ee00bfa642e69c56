"""The runner gives its trackers what it reads from metrics.jsonl, at whatever start of the run."""

import shutil
from pathlib import Path

import pytest

from growctl.runs.find import find_runs
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
    runs = Path(shutil.copytree(trained, tmp_path / "runs", symlinks=True))
    arguments = ("run", schedule, "launch.devices=2", "--runs-dir", runs)
    assert "trackers" not in run_here(*arguments)[0]
    assert f"trackers: tensorboard, in {runs}/.trackers unless" in run_here(*arguments, "trackers=[tensorboard]")[0]
    first, *logged, last = calls(runs)
    assert (first[:4], last) == (["run", "tiny", "tiny", "ladder"], ["finish", "finished"])
    for _, name, stage in RunPaths(runs / "tiny").stages_found():
        shown = [record for record in read_metrics(stage.metrics) if record["event"] in ("train", "evaluation")]
        assert len([call for call in logged if call[:2] == ["log", name]]) == len(shown)
    ends = {call[1]: call[4] for call in logged}
    assert ends == pytest.approx({stage.name: stage.cumulative_flops for stage in find_runs(runs)[0].stages})
