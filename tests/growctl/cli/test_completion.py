"""What a shell completes, as bash asks for it, and the version."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.workers import REPOSITORY

AS_INSTALLED = "import sys; sys.argv[0] = 'growctl'; from growctl.cli.app import main; main()"


def growctl(folder: Path, *arguments: str, **variables: str) -> str:
    """The output of growctl, started in `folder` as the console script starts it."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | variables
    if "GROWCTL_RUNS_DIR" not in variables:
        environment.pop("GROWCTL_RUNS_DIR", None)
    command = [sys.executable, "-c", AS_INSTALLED, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def completed(folder: Path, line: str, **variables: str) -> list[str]:
    """What bash offers for the last word of a command line."""
    words = line.split(" ")
    position = str(len(words) - 1)
    return growctl(folder, _GROWCTL_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=position, **variables).split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for runs, names in (("runs", ("tiny", "tiny-control-best-scratch", "other")), ("elsewhere", ("tiger",))):
        for name in names:
            (tmp_path / runs / name / "stages/0-small").mkdir(parents=True)
            (tmp_path / runs / name / "schedule.yaml").touch()
    (tmp_path / "runs/.datasets").mkdir()
    return tmp_path


def test_the_version_is_printed(tmp_path):
    assert growctl(tmp_path, "--version") == f"growctl {version('growctl')}\n"


@pytest.mark.parametrize("command", ["status", "report", "show", "expand", "verify"])
def test_the_names_of_runs_are_completed(folder, command):
    assert completed(folder, f"growctl {command} ti") == ["tiny", "tiny-control-best-scratch"]


def test_runs_come_from_the_runs_directory_that_the_command_line_or_the_environment_names(folder):
    assert completed(folder, "growctl show --runs-dir elsewhere ti") == ["tiger"]
    assert completed(folder, "growctl show ti", GROWCTL_RUNS_DIR="elsewhere") == ["tiger"]
    assert completed(folder, "growctl show --runs-dir nowhere ti") == []


def test_shipped_schedules_are_completed(folder):
    assert completed(folder, "growctl run quick") == ["quickstart"]


def test_a_script_for_the_shell_is_printed(tmp_path):
    script = growctl(tmp_path, "--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_GROWCTL_COMPLETE=complete_bash" in script
