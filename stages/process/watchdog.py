"""Notices a rank that stalls. No torch here.

Every rank has a file in the stage's `stacks/`. As long as its work goes on, the file's time is renewed; where it does
not for too long, faulthandler writes the stacks of all threads into it, from a thread of C that needs no interpreter.
The runner looks at these files (growctl/run/attempt.py): it is what ends and restarts the workers. A process that is
stopped, or whose machine is gone, writes nothing, and is known by that.
"""

import faulthandler
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from stages.stage_dir import StagePaths

_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class Watchdog:
    """A rank's end: to be told that work goes on."""

    def __init__(self, path: Path, seconds: float) -> None:
        """Begins to watch: `beat` must be called within `seconds`, again and again."""
        path.parent.mkdir(exist_ok=True)
        self._file = path.open("w")
        self._seconds = seconds
        self._last = float("-inf")
        self.beat()

    def beat(self) -> None:
        """Work goes on. To be called often; heeded a few times in `seconds`."""
        now = time.monotonic()
        if now - self._last < self._seconds / 20:
            return
        self._last = now
        os.utime(self._file.fileno())
        faulthandler.dump_traceback_later(self._seconds, file=self._file)

    def end(self) -> None:
        """The work is done."""
        faulthandler.cancel_dump_traceback_later()
        self._file.close()


class Stalls:
    """The runner's end: looks at the files of one attempt's ranks."""

    def __init__(self, stage: Path, attempt: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`seconds` as the ranks'; the runner's own patience is half as long again."""
        self._paths = StagePaths(stage)
        self._attempt = attempt
        self._patience = 1.5 * seconds
        self._clock = clock
        self._renewed: dict[int, tuple[float, float]] = {}

    def noticed(self) -> bool:
        """Whether a rank has written its stacks, or its file has not been renewed for longer than it should."""
        now = self._clock()
        for rank, path in self._files().items():
            try:
                status = path.stat()
            except OSError:
                continue
            if status.st_size:
                return True
            renewed, since = self._renewed.get(rank, (None, now))
            if renewed != status.st_mtime:
                self._renewed[rank] = status.st_mtime, now
            elif now - since > self._patience:
                return True
        return False

    def described(self) -> str:
        """Where each rank is, in words."""
        places: dict[str, list[str]] = {}
        for rank, path in sorted(self._files().items()):
            try:
                place = _place(path.read_text(errors="replace"))
            except OSError as error:
                place = error.strerror or "cannot be read"
            places.setdefault(place, []).append(str(rank))
        return "; ".join(
            f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks[:8])}{' ...' if len(ranks) > 8 else ''}: {place}"
            for place, ranks in places.items()
        )

    def tidy(self) -> None:
        """Removes the files in which nothing is written."""
        for path in self._files().values():
            if path.stat().st_size == 0:
                path.unlink(missing_ok=True)
        if self._paths.stacks.is_dir() and not any(self._paths.stacks.iterdir()):
            self._paths.stacks.rmdir()

    def _files(self) -> dict[int, Path]:
        return self._paths.stack_files(self._attempt)


def _place(stacks: str) -> str:
    """Where the main thread is, the last that faulthandler lists: the innermost call first."""
    if not stacks:
        return "no answer (it was stopped, or its machine is gone)"
    for line in stacks[stacks.rfind("(most recent call first)") :].splitlines():
        if match := _FRAME.fullmatch(line):
            return f"{match[3]} ({Path(match[1]).name}:{match[2]})"
    return "outside Python"
