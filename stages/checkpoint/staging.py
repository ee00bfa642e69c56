"""Tells hidden directories that are being written from those that a killed process left behind. No torch here.

The process that writes one holds a lock on a file in it, which the kernel releases when the process ends, however it
ends. Directories without such a file are left alone: workers write some whose processes hold the lock of the run
instead, and on file systems without locks there is no telling.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stages.stage_dir import WRITING_MARK, is_unfinished


@contextmanager
def marked_as_written(directory: Path) -> Iterator[None]:
    """Marks the hidden `directory` as being written, until the block or this process ends."""
    mark = directory / WRITING_MARK
    unlocked = mark.with_name(f"{WRITING_MARK}.{os.getpid()}")
    with unlocked.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.replace(unlocked, mark)  # no process ever sees an unlocked mark of live work
        except OSError:
            unlocked.unlink()
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)


def is_being_written(directory: Path) -> bool:
    """Whether a process has marked `directory` and is alive, or may be. Locks the mark for an instant to find out."""
    try:
        with (directory / WRITING_MARK).open("rb") as mark:
            fcntl.flock(mark, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return False


def remove_abandoned(folder: Path) -> list[Path]:
    """Removes the marked directories in `folder` whose processes have died, and returns their paths."""
    removed = []
    for mark in sorted(folder.glob(f".*/{WRITING_MARK}")):
        directory = mark.parent
        if directory.is_symlink() or not is_unfinished(directory):
            continue
        with suppress(OSError), mark.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(directory, mark)
            removed.append(directory)
    return removed


def _remove(directory: Path, mark: Path) -> None:
    """Removes the mark last, so that another process finishes the removal if this one is killed."""
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != mark:
            path.unlink()
    shutil.rmtree(directory)
