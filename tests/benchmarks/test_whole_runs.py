"""Whole runs on a GPU pass on the overrides of the commands that the documentation prints."""

import re
import shlex
import sys
from typing import Any

import pytest

from benchmarks.gpu import whole_runs
from tests.workers import REPOSITORY

PAGE = (REPOSITORY / "docs/performance.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", re.findall(r"^python -m benchmarks\.gpu\.whole_runs (.*)$", PAGE, re.MULTILINE))
def test_documented_commands_pass_their_overrides_on(command, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    found: list[Any] = []
    for name in ("bits", "ladder"):
        monkeypatch.setattr(whole_runs, name, lambda growctl, *rest: found.append(growctl.overrides) or 0)
    words = shlex.split(command)
    monkeypatch.setattr(sys, "argv", ["whole_runs", *words])
    assert whole_runs.main() == 0
    assert found == [[word for word in words if "=" in word]]
    assert found[0]
