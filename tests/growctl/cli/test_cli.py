"""The command line starts fast and explains mistakes."""

import signal
import subprocess
import sys

import pytest
import typer.main

from growctl.cli.app import app
from growctl.run.signals import Stopped
from tests.growctl.runs import run_here

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


@pytest.mark.parametrize(("command", "advice"), [("sweep", "; run the same command again to resume"), ("import", "")])
def test_only_a_run_that_is_stopped_says_that_it_can_be_resumed(monkeypatch, command, advice):
    def stop(**_: object) -> None:
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr("growctl.cli.app.app", stop)
    assert run_here(command, expect=143)[1] == f"growctl: terminated{advice}\n"
