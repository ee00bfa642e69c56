"""Signals that stop growctl, at once or after the workers have saved.

While workers train, the first signal is only noted, so that they can save; a second one stops growctl at once, as any
signal does elsewhere: a run can be resumed from what is on disk at any moment.
"""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Stopped(BaseException):
    """A signal arrived; not an Exception, so that nothing on the way takes it for a failure."""

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C; 143 for every other, each of which is somebody's way of taking the machine away."""
        return 128 + (signal.SIGINT if self.number == signal.SIGINT else signal.SIGTERM)


class Note:
    """Whether a signal arrived that has not been heeded yet."""

    def __init__(self) -> None:
        self.number: int | None = None


_notes: list[Note] = []


def heed(signals: Sequence[signal.Signals] = STOPS) -> None:
    """From now on `signals` raise Stopped in the main thread, or are noted."""
    for number in signals:
        signal.signal(number, _arrived)


@contextmanager
def noted() -> Iterator[Note]:
    """Within the block the first signal is noted and a second raises Stopped; one that was only noted raises it at the
    block's end."""
    note = Note()
    _notes.append(note)
    try:
        yield note
    finally:
        _notes.remove(note)
    if note.number is not None:
        raise Stopped(note.number)


def _arrived(number: int, frame: FrameType | None) -> None:
    if _notes and _notes[-1].number is None:
        _notes[-1].number = number
        return
    raise Stopped(number)
