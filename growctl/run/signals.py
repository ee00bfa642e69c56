"""Handles the signals that stop growctl, at once or after the workers have saved.

While workers train, the first signal is only noted, so that they can save; a second one stops growctl at once, as any
signal does elsewhere: a run can be resumed from what is on disk at any moment.

A terminal that closes sends SIGHUP, often twice: both the kernel and the shell do. Only the first one counts.
"""

import os
import signal
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Stopped(BaseException):
    """A signal arrived. Not an Exception, so that no handler treats it as a failure."""

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C; 143 for every other signal, because clusters use all of them to take a machine away."""
        return 128 + (signal.SIGINT if self.number == signal.SIGINT else signal.SIGTERM)


class Note:
    """The number of a signal that arrived and is still to be acted on; None before the first."""

    def __init__(self) -> None:
        self.number: int | None = None


_notes: list[Note] = []


def install_handlers(signals: Sequence[signal.Signals] = STOPS) -> None:
    """Makes `signals` raise Stopped in the main thread; inside `noted()`, the first one is only noted. Leaves SIGHUP
    alone if it is ignored, as nohup does."""
    for number in signals:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _arrived)


def leave_terminal() -> None:
    """Discards the output from now on, unless it goes to a file: whoever read it has gone, and writing would fail."""
    with open(os.devnull, "wb") as nowhere:
        for descriptor in (1, 2):
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.dup2(nowhere.fileno(), descriptor)


@contextmanager
def noted() -> Iterator[Note]:
    """Notes the first signal within the block; a second raises Stopped at once. A noted signal raises Stopped at the
    end of the block."""
    note = Note()
    _notes.append(note)
    try:
        yield note
    finally:
        _notes.remove(note)
    if note.number is not None:
        raise Stopped(note.number)


def _arrived(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        signal.signal(number, signal.SIG_IGN)
        leave_terminal()
    if _notes and _notes[-1].number is None:
        _notes[-1].number = number
        return
    raise Stopped(number)
