"""Lifelines: workers end when their runner does, however it dies and wherever they run. No torch here.

GROWCTL_LIFELINE in a worker's environment says what it is; without it a worker depends on nobody.

- `stdin`: a pipe that only the runner holds the other end of. For workers on the runner's own machine.
- a path: a file on a file system that all machines share. The runner rewrites it every few seconds and removes it when
  the workers shall end; so does a worker that fails, for the others. Nobody compares clocks: a worker measures by its
  own how long the content has been the same. Remote shells and MPI leave no standard input to rely on.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

VARIABLE = "GROWCTL_LIFELINE"
STDIN = "stdin"

BEAT_SECONDS = 10.0
"""The runner rewrites the file this often."""

LOOK_SECONDS = 3.0
"""A worker reads the file this often."""

PATIENCE_SECONDS = 300.0
"""A worker ends when the file has not changed for so long: far more than file systems' caches or a busy runner take."""

ENDED = 143
"""Exit code of a worker whose runner is gone."""


class Lifeline:
    """The runner's end of a lifeline file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beats = 0
        self._last = 0.0

    def start(self) -> None:
        """Makes the file. Those of earlier attempts in the same directory go: their workers, if there are any, end."""
        for old in self._path.parent.glob(f"{self._path.stem}.*"):
            old.unlink(missing_ok=True)
        self._path.touch()
        self.beat()

    def beat(self) -> None:
        """To be called often; rewrites the file every `BEAT_SECONDS`. One that a failed worker removed stays away."""
        if self._beats and time.monotonic() - self._last < BEAT_SECONDS:
            return
        self._last = time.monotonic()
        self._beats += 1
        try:
            with self._path.open("r+") as file:
                file.write(str(self._beats))
        except FileNotFoundError:
            return

    def end(self) -> None:
        """Tells the workers to end."""
        self._path.unlink(missing_ok=True)


def end_with_runner() -> None:
    """Ends this process as soon as its lifeline does, in a thread of its own; nothing where there is no lifeline.

    Nobody trains on unobserved, beside the worker of a runner that was started anew. The end of a pipe stays, and so
    does a removed file's absence: one that came before this call is seen too.
    """
    lifeline = os.environ.get(VARIABLE)
    if lifeline is None:
        return
    if lifeline == STDIN:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
        return
    if "SLURM_STEP_ID" in os.environ:
        # What a cluster has to say to a job it says to every process at once. Only the runner acts on it.
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=lambda: os._exit(watch(Path(lifeline))), daemon=True).start()


def cut_lifeline() -> None:
    """Ends the other workers, on all machines, where they hang on a file: this one failed, they would wait for it."""
    lifeline = os.environ.get(VARIABLE, STDIN)
    if lifeline != STDIN:
        Path(lifeline).unlink(missing_ok=True)


def watch(
    path: Path,
    patience: float = PATIENCE_SECONDS,
    look: float = LOOK_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Returns once this process shall end, its exit code: 1 where the file is gone, 143 where it no longer changes.

    An error in reading (a file server that is away for a moment) is no change.
    """
    seen, since = "", clock()
    while True:
        try:
            content = path.read_text()
        except FileNotFoundError:
            return 1
        except OSError:
            content = seen
        if content != seen:
            seen, since = content, clock()
        elif clock() - since >= patience:
            return ENDED
        sleep(look)


def _end_with_stdin() -> None:
    while os.read(0, 1):
        pass
    os._exit(ENDED)
