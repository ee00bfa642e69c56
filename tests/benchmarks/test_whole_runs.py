"""Whole runs on a GPU: the commands that the documentation prints are understood, and exit codes say what happened."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import whole_runs

PAGE = Path(__file__).resolve().parents[2] / "docs/performance.md"
COMMANDS = re.findall(r"^python -m benchmarks\.gpu\.whole_runs (.*)$", PAGE.read_text(encoding="utf-8"), re.M)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_commands_pass_their_overrides_on(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    for name in ("bits", "ladder"):
        monkeypatch.setattr(whole_runs, name, lambda growctl, *rest: found.append(growctl.overrides) or 0)
    words = shlex.split(command)
    monkeypatch.setattr(sys, "argv", ["whole_runs", *words])
    assert whole_runs.main() == 0
    assert found == [[word for word in words if "=" in word]]
    assert found[0]


@pytest.mark.parametrize(
    ("ends", "stopped", "steps", "code", "reports"),
    [
        (0, None, 9, 0, 1),
        (None, 128 + signal.SIGTERM, 9, whole_runs.UNFINISHED, 1),
        (None, 128 + signal.SIGTERM, 0, whole_runs.UNFINISHED, 0),  # still preparing the text
        (None, 0, 9, 0, 1),  # done just as it is stopped
        (1, None, 9, 1, 0),
        (None, 1, 9, 1, 0),
    ],
)
def test_a_ladder_says_whether_it_is_done_needs_another_call_or_failed(
    tmp_path: Path, ends: int | None, stopped: int | None, steps: int, code: int, reports: int
) -> None:
    signals: list[int] = []
    reported: list[tuple[Any, ...]] = []

    def wait(seconds: float | None = None) -> int | None:
        if seconds is not None and ends is None:
            raise subprocess.TimeoutExpired("growctl", seconds)
        return stopped if ends is None else ends

    (tmp_path / "growctl.log").touch()
    growctl: Any = SimpleNamespace(
        directory=tmp_path,
        train=lambda name: SimpleNamespace(wait=wait, send_signal=signals.append),
        start=lambda *words: reported.append(words) or SimpleNamespace(wait=lambda: 0),
        steps=lambda name: steps,
    )
    assert whole_runs.ladder(growctl, tmp_path / "out", 60.0) == code
    assert signals == ([signal.SIGTERM] if ends is None else [])
    assert len(reported) == reports
