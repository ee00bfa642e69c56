"""What a shell completes, as bash asks for it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from growctl.cli.app import app


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
