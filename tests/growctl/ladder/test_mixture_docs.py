"""The example of docs/data.md is a schedule, and its plan reads as the page shows it."""

import re
from pathlib import Path

import pytest
from rich.console import Console

from growctl.ladder.load import load_schedule
from growctl.ladder.plan import make_plan, print_plan
from tests.workers import REPOSITORY

PAGE = (REPOSITORY / "docs/data.md").read_text().partition("## Mixtures")[2]


def test_the_mixture_of_the_page_plans_as_the_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
    (tmp_path / "mixed.yaml").write_text(schedule)
    print_plan(make_plan(load_schedule(str(tmp_path / "mixed.yaml"))), Console(width=100))
    shown = re.findall(r"```\n(Tokens and epochs by source.*?)```", PAGE, re.DOTALL)[0]
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    start = printed.index("Tokens and epochs by source")
    assert printed[start : start + len(shown.splitlines())] == shown.splitlines()
