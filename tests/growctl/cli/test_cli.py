"""The command line starts fast and completes names; `growctl init` writes a schedule and replaces none."""

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer.main
from typer.testing import CliRunner

from growctl.cli import checkpoints, verify
from growctl.cli.app import app
from growctl.ladder.load import load_schedule
from model.policy import Init, Moments, Preset, TauPolicy
from model.precision import ComparisonDtype
from tests.growctl.runs import run_here
from tests.workers import REPOSITORY

EXPAND_OPTIONS = {"preset": Preset, "init": Init, "tau": TauPolicy, "moments": Moments}
COMMANDS = sorted(typer.main.get_group(app).commands)


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom growctl.cli.app import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'deepspeed', 'matplotlib', 'hydra', 'datatrove', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for command in COMMANDS:
        assert command in result.stdout


def test_every_command_has_an_example_and_the_readme_names_no_other():
    for command in COMMANDS:
        shown = CliRunner().invoke(app, [command, "--help"]).output
        assert f"Example: growctl {command}" in " ".join(shown.split()), command
    named = set(re.findall(r"^growctl ([a-z]+)", (REPOSITORY / "README.md").read_text(), re.MULTILINE))
    assert named
    assert named <= set(COMMANDS)


def test_commands_on_checkpoints_offer_every_name_that_the_model_knows():
    """They cannot import it for --help: the command has to start where `model` is somebody else's (doctor says so)."""
    for command, option, known in [
        *((checkpoints.expand, name, names) for name, names in EXPAND_OPTIONS.items()),
        (verify.verify, "dtype", ComparisonDtype),
    ]:
        hint = get_type_hints(command)[option]
        offered = [choice for part in [hint, *get_args(hint)] for choice in get_args(part) if isinstance(choice, str)]
        assert offered == list(get_args(known)), option


@pytest.mark.parametrize(
    ("line", "offered"),
    [("status ti", ["tiny"]), ("show --runs-dir nowhere ti", []), ("run late", ["late_depth", "late_tokens"])],
)
def test_names_of_runs_and_of_shipped_schedules_are_completed(tmp_path: Path, line: str, offered: list[str]) -> None:
    for run in ("tiny", "other", ".datasets"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "schedule.yaml").touch()
    asked = {"_GROWCTL_COMPLETE": "complete_bash", "COMP_WORDS": f"growctl {line}"}
    asked |= {"COMP_CWORD": str(line.count(" ") + 1), "GROWCTL_RUNS_DIR": str(tmp_path)}
    assert CliRunner().invoke(app, env=asked, prog_name="growctl").stdout.split() == offered


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
