"""What a runner tells its workers while they run, on any machine: save and exit, or end because the runner has ended.

Imports no torch.

The variable GROWCTL_LIFELINE in a worker's environment chooses the kind of lifeline; without it, a worker has none.

- `stdin`: a pipe whose other end only the runner holds. For workers on the runner's own machine, which the runner asks
  to save with SIGUSR1.
- a path: a file on a file system that all machines share. The runner rewrites it every few seconds, adds `save` to ask
  the workers to save and exit, and removes it to end them. A worker that fails removes it too, to end the others. No
  clocks are compared: a worker measures with its own clock how long the content has not changed. Remote shells and MPI
  provide no reliable standard input.

A cluster may also signal the workers directly. A request needs to reach only one rank: the training loop passes it to
all ranks at the same step (stages/train/worker.py).
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

LOOK_SECONDS = 1.0
"""A worker reads the file this often."""

PATIENCE_SECONDS = 300.0
"""A worker exits if the file has not changed for this long, far longer than caches or a busy runner delay it."""

ENDED = 143
"""Exit code of a worker whose runner is gone."""

SAVE_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_SAVE = "save"

save_requests: list[str] = []
"""By what this process was asked to save and exit. A request cannot be withdrawn. No threading.Event, whose lock would
make a signal's handler wait forever when it interrupts that of another signal."""


class Lifeline:
    """The runner's end of a lifeline file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beats = 0
        self._last = 0.0
        self._request = ""

    def start(self) -> None:
        """Creates the file and removes those of earlier attempts in the same directory, which ends their workers."""
        for old in self._path.parent.glob(f"{self._path.stem}.*"):
            old.unlink(missing_ok=True)
        self._path.touch()
        self.beat()

    def beat(self) -> None:
        """Rewrites the file every `BEAT_SECONDS`; call it often. A file removed by a failed worker stays removed."""
        if self._beats and time.monotonic() - self._last < BEAT_SECONDS:
            return
        self._last = time.monotonic()
        self._beats += 1
        try:
            with self._path.open("r+") as file:
                file.write(f"{self._beats}{self._request}")
        except FileNotFoundError:
            return

    def ask_to_save(self) -> None:
        """Asks the workers to save and exit."""
        self._request, self._last = f" {_SAVE}", 0.0
        self.beat()

    def end(self) -> None:
        """Removes the file, which ends the workers."""
        self._path.unlink(missing_ok=True)


def listen_for_save_requests() -> None:
    """From now on, signals ask this process to save and exit. Call it in the main thread."""
    for number in SAVE_SIGNALS:
        signal.signal(number, lambda number, frame: save_requests.append(signal.Signals(number).name))


def end_with_runner() -> None:
    """Starts a thread that ends this process as soon as its lifeline ends; does nothing without a lifeline.

    This stops orphaned workers, which would train beside those of a restarted runner. The thread also notices a pipe
    that was closed, or a file that was removed, before this call.
    """
    lifeline = os.environ.get(VARIABLE)
    if lifeline is None:
        return
    if lifeline == STDIN:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
        return
    if "SLURM_STEP_ID" in os.environ:
        # A cluster signals all processes of a job at once. Only the runner acts on the signal.
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=lambda: os._exit(watch(Path(lifeline))), daemon=True).start()


def cut_lifeline() -> None:
    """Ends the other workers on all machines, if their lifeline is a file; otherwise they would wait for this one."""
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
    """Waits until this process must end and returns its exit code: 1 if the file is gone, 143 if it stopped changing.

    Adds to `save_requests` once the file asks for it. A read error (a file server may be unreachable for a moment)
    counts as unchanged content.
    """
    seen, since = "", clock()
    while True:
        try:
            content = path.read_text()
        except FileNotFoundError:
            return 1
        except OSError:
            content = seen
        if content.endswith(_SAVE):
            save_requests.append(_SAVE)
        if content != seen:
            seen, since = content, clock()
        elif clock() - since >= patience:
            return ENDED
        sleep(look)


def _end_with_stdin() -> None:
    while os.read(0, 1):
        pass
    os._exit(ENDED)
