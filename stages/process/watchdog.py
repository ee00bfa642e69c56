"""Detects a rank that stalls.

Imports no torch.

Every rank has a file in the stage's `stacks/`. While the rank makes progress, it renews the file's modification time.
If it makes none for too long, faulthandler writes the stacks of all threads into the file, from a C thread that does
not need the interpreter. The runner watches these files and restarts the workers (growctl/run/attempt.py). A rank that
is stopped, or whose machine is gone, writes nothing; the runner notices that its file is no longer renewed.
"""

import faulthandler
import os
import re
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from stages.counted import plural
from stages.stage_dir import StagePaths

_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class Watchdog:
    """A rank's side: reports that the rank makes progress."""

    def __init__(self, path: Path, seconds: float) -> None:
        """Starts to watch: `beat` must be called at least every `seconds` seconds."""
        path.parent.mkdir(exist_ok=True)
        self._file = path.open("w")
        self._seconds = seconds
        self._last = float("-inf")
        self.beat()

    def beat(self) -> None:
        """Reports progress. Call it often; it acts at most 20 times per period."""
        now = time.monotonic()
        if now - self._last < self._seconds / 20:
            return
        self._last = now
        os.utime(self._file.fileno())
        faulthandler.dump_traceback_later(self._seconds, file=self._file)

    def end(self) -> None:
        """Stops watching."""
        faulthandler.cancel_dump_traceback_later()
        self._file.close()


class Stalls:
    """The runner's side: watches the files of one attempt's ranks."""

    def __init__(self, stage: Path, attempt: int, seconds: float) -> None:
        """`seconds` is the ranks' period; the runner waits 1.5 times as long."""
        self._files = partial(StagePaths(stage).stack_files, attempt)
        self._patience = 1.5 * seconds
        self._renewed: dict[int, tuple[float, float]] = {}

    def noticed(self) -> bool:
        """Whether a rank has written its stacks, or has not renewed its file for too long."""
        now = time.monotonic()
        for rank, path in self._files().items():
            status = path.stat()
            if status.st_size:
                return True
            renewed, since = self._renewed.get(rank, (None, now))
            if renewed != status.st_mtime:
                self._renewed[rank] = status.st_mtime, now
            elif now - since > self._patience:
                return True
        return False

    def described(self) -> str:
        """Where each rank is in the code, in words."""
        places: dict[str, list[str]] = {}
        for rank, path in sorted(self._files().items()):
            places.setdefault(_place(path.read_text(errors="replace")), []).append(str(rank))
        return "; ".join(
            f"{plural(len(ranks), 'rank')} {', '.join(ranks[:8])}{' ...' if len(ranks) > 8 else ''}: {place}"
            for place, ranks in places.items()
        )


def remove_empty_stacks(stacks: Path) -> None:
    """Removes the files without stack traces, and their directory once it is empty."""
    for path in stacks.glob("*.txt"):
        if path.stat().st_size == 0:
            path.unlink()
    with suppress(OSError):
        stacks.rmdir()


def _place(stacks: str) -> str:
    """The innermost call of the main thread, which faulthandler lists last, innermost call first."""
    if not stacks:
        return "no answer (it was stopped, or its machine is gone)"
    for line in stacks[stacks.rfind("(most recent call first)") :].splitlines():
        if match := _FRAME.fullmatch(line):
            return f"{match[3]} ({Path(match[1]).name}:{match[2]})"
    return "outside Python"
