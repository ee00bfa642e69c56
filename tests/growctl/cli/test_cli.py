"""The command line starts fast and explains mistakes."""

import subprocess
import sys

import typer.main

from growctl.cli.app import app

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
