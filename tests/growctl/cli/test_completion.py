"""What a shell completes, as bash asks for it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from growctl.cli.app import app

RUNS = ("runs/tiny", "runs/tiny-control-best-scratch", "runs/other", "elsewhere/tiger")


@pytest.fixture(autouse=True)
def in_a_folder_with_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GROWCTL_RUNS_DIR", raising=False)
    for run in RUNS:
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "schedule.yaml").touch()
    (tmp_path / "runs/.datasets").mkdir()


def growctl(*arguments: str, **variables: str) -> str:
    return CliRunner().invoke(app, arguments, env=variables, prog_name="growctl").stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        *((f"{command} ti", "tiny tiny-control-best-scratch") for command in ("status", "report", "show", "verify")),
        ("show --runs-dir elsewhere ti", "tiger"),
        ("show --runs-dir nowhere ti", ""),
        ("run quick", "quickstart"),
    ],
)
def test_names_of_runs_and_of_shipped_schedules_are_completed(line: str, offered: str) -> None:
    asked = {"COMP_WORDS": f"growctl {line}", "COMP_CWORD": str(line.count(" ") + 1)}
    assert growctl(_GROWCTL_COMPLETE="complete_bash", **asked).split() == offered.split()
    if "--runs-dir" not in line and offered.startswith("tiny"):
        assert growctl(_GROWCTL_COMPLETE="complete_bash", GROWCTL_RUNS_DIR="elsewhere", **asked).split() == ["tiger"]
