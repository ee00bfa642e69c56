"""Locks a dataset while a process prepares or fetches it, so that others wait and `growctl clean` leaves it alone."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stages.data.progress import Progress
from stages.stage_dir import preparation_lock


@contextmanager
def locked(dataset_dir: Path, progress: Progress) -> Iterator[bool]:
    """Waits until no other process locks the dataset, then locks it. Yields False if the file system has no locks.

    The lock of a process ends with the process.
    """
    with preparation_lock(dataset_dir).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.say("waiting for another process that is preparing the same dataset")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield False
            return
        yield True
