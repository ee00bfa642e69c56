"""Reports the progress of preparing a dataset to a callback and to its log."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

OnProgress = Callable[[str, float | None], None]
"""Receives a description of the work, and the fraction done (None if unknown)."""


class Work(NamedTuple):
    """How far work on bytes has come."""

    description: str
    done_bytes: int
    total_bytes: int
    num_tokens: int
    """Tokens written since the start of this process."""
    seconds: float
    """Since the start of this process."""
    seconds_left: float | None
    """At the speed so far; None if it is not known."""


OnWork = Callable[[Work], None]
"""Receives figures about the work, once a second."""


class Meter:
    """Counts bytes and tokens of a piece of work. By default it reports nothing."""

    def __init__(self, report: Callable[["Meter"], None] = lambda meter: None, total_bytes: int = 0) -> None:
        self._report = report
        self.total_bytes = total_bytes
        self.done_bytes = self.earlier_bytes = self.num_tokens = 0
        self._start = time.monotonic()

    def advance(self, num_bytes: int, num_tokens: int = 0) -> None:
        """Adds what was done."""
        self.done_bytes += num_bytes
        self.num_tokens += num_tokens
        self._report(self)

    def skip(self, num_bytes: int) -> None:
        """Adds what an earlier process has done."""
        self.earlier_bytes += num_bytes
        self.advance(num_bytes)

    def work(self, description: str) -> Work:
        """The figures so far."""
        seconds = time.monotonic() - self._start
        done = self.done_bytes - self.earlier_bytes
        left = max(0, self.total_bytes - self.done_bytes)
        seconds_left = seconds * left / done if done and self.total_bytes else None
        return Work(description, self.done_bytes, self.total_bytes, self.num_tokens, seconds, seconds_left)


class Progress:
    """Reports progress to the caller and to the log."""

    def __init__(
        self,
        log_path: Path | None,
        on_progress: OnProgress | None,
        on_work: OnWork | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.log_path = log_path
        self.on_progress = on_progress
        self._on_work, self._tell = on_work, tell

    def say(self, message: str, fraction: float | None = None) -> None:
        """Reports `message` to the log and, with the fraction done, to the caller."""
        if self.log_path:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            with self.log_path.open("a", encoding="utf-8") as log:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
        if self.on_progress:
            self.on_progress(message, fraction)

    def warn(self, message: str) -> None:
        """Reports `message` to the log, and to the caller as a warning."""
        self.say(message)
        self._tell(message)

    def meter(self, message: str, total_bytes: int) -> Meter:
        """Reports the start of work on `total_bytes`. The meter reports each percent, and figures once a second."""
        percent, second = 0, time.monotonic()
        self.say(message, 0.0)

        def report(meter: Meter) -> None:
            nonlocal percent, second
            if (now := min(100, 100 * meter.done_bytes // max(1, total_bytes))) > percent:
                percent = now
                if self.on_progress:
                    self.on_progress(message, percent / 100)
            if self._on_work and (clock := time.monotonic()) >= second + 1:
                second = clock
                self._on_work(meter.work(message))

        return Meter(report, total_bytes)
