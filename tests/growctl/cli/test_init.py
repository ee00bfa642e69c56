"""`growctl init` writes a schedule and explains mistakes."""

from pathlib import Path

import pytest

from growctl.ladder.load import load_schedule
from growctl.ladder.stage_plans import plan_stages
from tests.growctl.runs import run_here


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


def init(words: str, expect: int = 0) -> tuple[str, str]:
    return run_here("init", *words.split(), expect=expect, cwd=Path.cwd())


def test_init_writes_a_file_named_after_the_size_and_never_replaces_it(tmp_path: Path) -> None:
    out, _ = init("--params 350M --base 40M --gpus 8 --device h100")
    assert "growctl run 350m.yaml" in out
    schedule = load_schedule("350m.yaml")
    assert (schedule.name, schedule.launch.devices, schedule.launch.hardware.device) == ("350m", 8, "h100")
    assert [stage.name for stage in schedule.stages] == ["39.8m", "81.8m", "168m", "348m"]
    Path("350m.yaml").write_text("mine")
    assert init("--params 350M", expect=2)[1] == "growctl: 350m.yaml: File exists\n"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(("option", "depths"), [("", [6, 6, 6]), (" --grow-depth", [3, 4, 6])])
def test_a_dash_prints_the_schedule_alone_and_the_command_in_its_heading_prints_it_again(
    option: str, depths: list[int], tmp_path: Path
) -> None:
    wish = f"--params 123456789 --tokens 2B --data pile --gpus 4{option}"
    text, _ = init(f"- {wish}")
    assert text.splitlines()[1] == f"#   growctl init {wish}"
    assert list(tmp_path.iterdir()) == []
    Path("mine.yaml").write_text(text)
    assert [plan.model.num_layers for plan in plan_stages(load_schedule("mine.yaml"))] == depths
