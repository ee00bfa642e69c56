"""Feeds one tracker, in a process of its own, through a bounded queue: a tracker never slows or stops training."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from growctl.text.escaping import visible

MOST_WAITING = 2000
"""Messages that wait for a tracker at most; later ones are dropped."""

Message = dict[str, Any]


class Feed:
    """The process of one tracker, and the messages that wait for it.

    `offer` returns at once, whatever the tracker does. At most one warning per feed goes to the user.
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        first: Message,
        log: Path,
        tell: Callable[[str], None],
        most: int = MOST_WAITING,
    ) -> None:
        """`arguments` of growctl.trackers.process; `first` is never dropped. `log` takes what the tracker prints."""
        self.name = name
        self._log = log
        self._tell = tell
        self._warned = self._over = False
        self._queue: queue.Queue[Message | None] = queue.Queue(most)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "growctl.trackers.process", *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is growctl's to handle
            )
        threading.Thread(target=self._write, args=(first,), daemon=True).start()

    def offer(self, message: Message) -> None:
        """Hands over a message, or drops it if too many are waiting or the tracker is gone."""
        if self._over:
            return
        if self._process.poll() is not None:
            self._over = True
            self._warn(f"stopped: {self._last_line()}; training goes on without it")
            return
        try:
            self._queue.put_nowait(message)
        except queue.Full:
            self._warn("does not keep up; what it misses is dropped, training goes on")

    def end(self, message: Message) -> None:
        """Hands over the last message, if need be instead of the oldest ones. `wait` then waits for the tracker."""
        for last in (message, None):
            while True:
                with suppress(queue.Full):
                    self._queue.put_nowait(last)
                    break
                with suppress(queue.Empty):
                    self._queue.get_nowait()

    def wait(self, deadline: float) -> None:
        """Waits for the tracker to exit, until time.monotonic() is `deadline`, and then kills it."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._warn("did not finish in time and was stopped")
        finally:  # also when a signal ends the wait
            self._kill()
        if self._process.returncode:
            self._warn(f"stopped: {self._last_line()}")

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _write(self, message: Message | None) -> None:
        """The thread: writes messages into the pipe, which blocks while the tracker does not read."""
        assert self._process.stdin
        with suppress(OSError), self._process.stdin as pipe:
            while message is not None:
                pipe.write(json.dumps(message).encode() + b"\n")
                pipe.flush()
                message = self._queue.get()

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            self._tell(f"tracker {self.name} {what}; see {self._log}")

    def _last_line(self) -> str:
        """The last line of the log: the message of the exception that ended the tracker."""
        with suppress(OSError):
            lines = self._log.read_bytes()[-10_000:].decode(errors="replace").strip().splitlines()
            if lines:
                return visible(lines[-1])
        return f"exit code {self._process.returncode}"
