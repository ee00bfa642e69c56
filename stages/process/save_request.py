"""Requests from the runner that workers save a checkpoint and exit.

Imports no torch.

The runner writes the request into a file in the stage's directory, which all machines share. The file exists before the
workers start, because file servers show new content sooner than new names. A cluster signals the workers directly.
Either way the request reaches at least one rank; the training loop then passes it to all ranks at the same step
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
"""Signals this close together count as one: the cluster signals the workers, and srun also forwards its own signal."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_SAVE = "save"


class RequestFile:
    """The runner's side."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def start(self) -> None:
        """Creates the file without a request and removes those of earlier attempts."""
        for old in self._path.parent.glob(f"{self._path.stem}.*"):
            old.unlink(missing_ok=True)
        self._path.touch()

    def make(self) -> None:
        """Asks the workers to save and exit."""
        self._path.write_text(_SAVE)

    def end(self) -> None:
        """Removes the file, once the workers have ended."""
        self._path.unlink(missing_ok=True)


class SaveRequest:
    """A worker's side: whether this process has received a request. A request cannot be withdrawn."""

    def __init__(self, path: Path | None) -> None:
        """Installs signal handlers, so call it in the main thread, and starts a thread that polls `path`."""
        self._made = threading.Event()
        self._first_signal: float | None = None
        for number in SIGNALS:
            signal.signal(number, self._signalled)
        if path:
            threading.Thread(target=self._look, args=(path,), daemon=True).start()

    @property
    def made(self) -> bool:
        """Whether this worker was asked to save and exit."""
        return self._made.is_set()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first_signal is None:  # the file does not count: runner and workers may get the same request
            self._first_signal = now
        if now - self._first_signal > SAME_SECONDS:  # a second request: end at once
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._made.set()

    def _look(self, path: Path) -> None:
        while not self._made.wait(LOOK_SECONDS):
            with suppress(OSError):  # the file server may be unreachable for a moment
                if path.read_text() == _SAVE:
                    self._made.set()
