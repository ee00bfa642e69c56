"""The command line starts fast and explains mistakes."""

import re
import subprocess
import sys
from typing import get_args, get_type_hints

import typer.main
from typer.testing import CliRunner

from growctl.cli import checkpoints, verify
from growctl.cli.app import app
from model.policy import Init, Moments, Preset, TauPolicy
from model.precision import ComparisonDtype
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


def test_every_command_has_an_example_and_a_line_in_the_readme():
    for command in COMMANDS:
        shown = CliRunner().invoke(app, [command, "--help"]).output
        assert f"Example: growctl {command}" in " ".join(shown.split()), command
    rows = re.findall(r"^\|.*", (REPOSITORY / "README.md").read_text(), re.MULTILINE)
    assert sorted(set(re.findall(r"`growctl ([a-z]+)", "\n".join(rows)))) == COMMANDS


def test_commands_on_checkpoints_offer_every_name_that_the_model_knows():
    """They cannot import it for --help: the command has to start where `model` is somebody else's (doctor says so)."""
    for command, option, known in [
        *((checkpoints.expand, name, names) for name, names in EXPAND_OPTIONS.items()),
        (verify.verify, "dtype", ComparisonDtype),
    ]:
        hint = get_type_hints(command)[option]
        offered = [choice for part in [hint, *get_args(hint)] for choice in get_args(part) if isinstance(choice, str)]
        assert offered == list(get_args(known)), option
