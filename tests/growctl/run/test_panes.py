"""The live view in a real terminal: panes of tmux, captured as text and with their colours."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.growctl.run.draw_views import RUNS
from tests.workers import REPOSITORY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is missing"),
]

SIZES = ((80, 24), (100, 30), (200, 50))
SECONDS = 60.0
"""The longest wait for a drawing: a busy machine takes seconds to start Python."""


class Pane(NamedTuple):
    """What a terminal shows."""

    text: str
    coloured: str
    """The same with its escape sequences."""

    @property
    def lines(self) -> list[str]:
        return self.text.rstrip("\n").split("\n")


class Tmux:
    """A tmux server of its own, with one window that draws one run after another, each when it gets a line."""

    def __init__(self, runs: list[str]) -> None:
        self._socket = f"growctl-test-{os.getpid()}"
        draw = f"{sys.executable} -m tests.growctl.run.draw_views {' '.join(runs)}"
        command = f"env -u COLUMNS -u LINES TERM=xterm-256color {draw}"
        self.ask("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "-c", REPOSITORY, command)

    def ask(self, *arguments: object) -> str:
        command = ["tmux", "-u", "-L", self._socket, *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout

    def pane(self, name: str, width: int, height: int) -> Pane:
        """The pane of the next run, which is called `name`, in a window of this size."""
        self.ask("resize-window", "-x", width, "-y", height)
        self.ask("send-keys", "Enter")
        until = time.monotonic() + SECONDS
        before, text = "", self.ask("capture-pane", "-p")
        while f"drawn: {name}" not in text or "compute" not in text or text != before:  # else: drawn in part
            assert time.monotonic() < until, f"no drawing of {name!r}:\n{text}"
            time.sleep(0.05)
            before, text = text, self.ask("capture-pane", "-p")
        return Pane(text, self.ask("capture-pane", "-p", "-e"))

    def kill(self) -> None:
        """Ends the server and what runs in it."""
        subprocess.run(["tmux", "-L", self._socket, "kill-server"], check=False, capture_output=True)


@pytest.fixture(scope="module")
def panes() -> Iterator[dict[tuple[str, int], Pane]]:
    """A pane for every run and width."""
    drawn = [(name, *size) for size in SIZES for name in RUNS]
    server = Tmux([name for name, *_ in drawn])
    try:
        yield {(name, width): server.pane(name, width, height) for name, width, height in drawn}
    finally:
        server.kill()


WIDTHS = [width for width, _ in SIZES]
FACTS = {
    "small": (*("3.4568, validation 3.2110", "1.23M tokens/s, MFU n/a", "time left 0s", "3.49e08 of 1.44e09 FLOPs"),),
    "big": (
        *("3.4568, validation 3.2110", "1.23M tokens/s, MFU 21.3%", "time left 2d 13h", "6.00e19 of 4.33e20 FLOPs"),
    ),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("run", RUNS)
def test_every_fact_of_the_training_stage_is_in_the_pane_as_a_whole(
    panes: dict[tuple[str, int], Pane], run: str, width: int
) -> None:
    text = " ".join(panes[run, width].text.split())
    assert [fact for fact in FACTS[run] if fact not in text] == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("run", RUNS)
def test_no_name_heading_or_number_of_the_table_is_cut(
    panes: dict[tuple[str, int], Pane], run: str, width: int
) -> None:
    pane = panes[run, width]
    assert "…" not in pane.text
    assert "..." not in pane.text
    rows = pane.lines[[line.startswith("stage ") for line in pane.lines].index(True) + 1 :]
    shown = [line.split()[0] for line in rows if re.search(r" \d+/\d+ ", line)]
    schedule, done, _ = RUNS[run]
    known = {stage.name for stage in schedule.stages} | {f"{stage.name}/release" for stage in schedule.stages}
    assert set(shown) <= known
    assert list(done)[-1] in shown
    for line in rows[: len(shown)]:
        assert line.split()[0] in known
        assert re.search(r" \d+/\d+ .*(done|waiting|training)$", line)
    assert max(map(len, pane.lines)) <= width


def test_a_wider_terminal_shows_a_longer_bar(panes: dict[tuple[str, int], Pane]) -> None:
    bars = [max(map(len, re.findall("[━─]+", panes["big", width].text))) for width in WIDTHS]
    assert bars[0] < bars[-1]


def luminance(number: int) -> float:
    """The relative luminance of colour `number` of 256, after WCAG 2."""
    if number >= 232:
        rgb = [8 + 10 * (number - 232)] * 3
    else:
        levels = [0, 95, 135, 175, 215, 255]
        rgb = [levels[(number - 16) // 36], levels[(number - 16) // 6 % 6], levels[(number - 16) % 6]]
    parts = [part / 255 for part in rgb]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("run", RUNS)
def test_every_colour_can_be_read_on_white_and_on_black(panes: dict[tuple[str, int], Pane], run: str) -> None:
    styles = set(re.findall(r"\x1b\[([0-9;]*)m", panes[run, 100].coloured))
    colours = {int(style.rpartition(";")[2]) for style in styles if "38;5;" in style}
    assert colours
    others = {style for style in styles if "38;5;" not in style} - {"", "0", "1", "39", "49"}
    assert others == set(), "neither dim text nor colours that the terminal's theme defines"
    for colour in colours:
        assert colour >= 16
        assert 1.05 / (luminance(colour) + 0.05) >= 3.0
        assert (luminance(colour) + 0.05) / 0.05 >= 3.0
