"""`growctl init` writes a schedule and explains mistakes."""

from pathlib import Path

import pytest

from growctl.ladder.load import load_schedule
from tests.growctl.runs import run_here


@pytest.mark.slow
def test_init_writes_a_file_named_after_the_size_and_never_replaces_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    wish = ("init", "--params", "350M", "--base", "40M", "--gpus", "8", "--device", "h100")
    text = run_here(*wish, "-", cwd=tmp_path)[0]
    assert list(tmp_path.iterdir()) == []
    assert "growctl run 350m.yaml" in run_here(*wish, cwd=tmp_path)[0]
    schedule = load_schedule(str(tmp_path / "350m.yaml"))
    assert (schedule.name, schedule.launch.devices, schedule.launch.hardware.device) == ("350m", 8, "h100")
    assert [stage.name for stage in schedule.stages] == ["39.8m", "81.8m", "168m", "348m"]
    (tmp_path / "mine.yaml").write_text(text)
    assert load_schedule(str(tmp_path / "mine.yaml")).stages == schedule.stages
    (tmp_path / "350m.yaml").write_text("mine")
    assert run_here(*wish, expect=2, cwd=tmp_path)[1] == "growctl: 350m.yaml: File exists\n"
    assert (tmp_path / "350m.yaml").read_text() == "mine"
