"""Reports the progress of preparing a dataset to a callback and to its log."""

import time
from collections.abc import Callable
from pathlib import Path

from stages.data.corpus import Advance

OnProgress = Callable[[str, float | None], None]
"""Receives a description of the work, and the fraction done (None if unknown)."""


class Progress:
    """Reports progress to the caller and to the log."""

    def __init__(self, log_path: Path | None, on_progress: OnProgress | None) -> None:
        if log_path:
            log_path.parent.mkdir(parents=True, exist_ok=True)
        self.log_path = log_path
        self._on_progress = on_progress

    def say(self, message: str, fraction: float | None = None) -> None:
        """Reports `message` to the log and, with the fraction done, to the caller."""
        if self.log_path:
            with self.log_path.open("a", encoding="utf-8") as log:
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
        if self._on_progress:
            self._on_progress(message, fraction)

    def meter(self, message: str, total_bytes: int) -> Advance:
        """Reports the start of work on `total_bytes`. Call the result with numbers of bytes; it reports each
        percent."""
        done = percent = 0
        self.say(message, 0.0)

        def advance(num_bytes: int) -> None:
            nonlocal done, percent
            done += num_bytes
            if (now := min(100, 100 * done // max(1, total_bytes))) > percent:
                percent = now
                if self._on_progress:
                    self._on_progress(message, percent / 100)

        return advance
