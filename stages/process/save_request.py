"""How workers are asked to save and to leave. No torch here.

The runner writes it into a file in the stage's directory, which all machines see; it is there from before the workers
start, because file servers tell of new names later than of new content. A cluster tells the workers themselves, by a
signal. Either reaches one rank at least; that all learn it at the same step is the loop's business
(stages/train/worker.py).
"""

import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

LOOK_SECONDS = 0.5
"""A worker reads the file this often."""

SAME_SECONDS = 5.0
"""Signals that come so close together are one: a cluster signals the workers, and srun passes on what it gets too."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_SAVE = "save"


class RequestFile:
    """The runner's end."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self) -> None:
        """Makes the file, in which nothing is asked yet; those of earlier attempts go."""
        for old in self._path.parent.glob(f"{self._path.stem}.*"):
            old.unlink(missing_ok=True)
        self._path.touch()

    def make(self) -> None:
        """Asks the workers to save and to leave."""
        self._path.write_text(_SAVE)

    def end(self) -> None:
        """The workers are gone."""
        self._path.unlink(missing_ok=True)


class SaveRequest:
    """A worker's end: whether this process has learnt of a request. It stays made."""

    def __init__(self, path: Path | None) -> None:
        """Heeds signals from now on, in the main thread, and looks at `path` in a thread of its own."""
        self._made = threading.Event()
        self._first_signal: float | None = None
        for number in SIGNALS:
            signal.signal(number, self._signalled)
        if path:
            threading.Thread(target=self._look, args=(path,), daemon=True).start()

    @property
    def made(self) -> bool:
        """Whether somebody asks this worker to save and to leave."""
        return self._made.is_set()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first_signal is None:  # whatever the file says: runner and workers may be told of the same thing
            self._first_signal = now
        if now - self._first_signal > SAME_SECONDS:  # told again: it is urgent
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._made.set()

    def _look(self, path: Path) -> None:
        while not self._made.wait(LOOK_SECONDS):
            with suppress(OSError):  # a file server that is away for a moment
                if path.read_text() == _SAVE:
                    self._made.set()
