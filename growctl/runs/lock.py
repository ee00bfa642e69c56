"""The lock of a run, which one growctl process holds and names itself in.

The kernel holds the lock and releases it when the process ends, however it ends; the content of the lock file only
informs people. On file systems without locks, the content is the lock: a process that it names, and that has not ended
(stages/process/holder.py), holds the run. Two that start at the same moment are not told apart there.
"""

import errno
import fcntl
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from growctl.runs.directory import RunError
from growctl.runs_dir import LOCK, RunPaths
from stages.process.holder import Holder, read_holder

HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Locks a run directory for this process; raises RunError if another growctl holds it. Ends with the process."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in HELD:
                raise RunError(f"{directory} is in use by another growctl ({read_holder(directory / LOCK)})") from None
            if error.errno not in NO_LOCKS:
                raise OSError(error.errno, error.strerror, str(directory / LOCK)) from error
            if holder := find_holder(directory):
                raise RunError(
                    f"{directory} is in use by another growctl ({holder}), according to {directory / LOCK}. This file "
                    "system has no locks; if you are sure that no growctl runs there, remove that file"
                ) from None
        lock.truncate(0)
        lock.write(Holder.me().model_dump_json())
        lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)  # an empty file records a clean exit


def find_holder(directory: Path) -> Holder | None:
    """The process that holds a run directory; None if no process does. Raises OSError if the lock cannot be checked."""
    try:
        return read_holder(directory / LOCK) if is_held(directory / LOCK) else None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    holder = read_holder(directory / LOCK)
    return None if holder.gone or holder.process is None else holder


def is_held(lock: Path) -> bool:
    """Whether a process holds `lock`. Takes a shared lock for an instant to find out."""
    if not lock.is_file():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in HELD:
                raise
            return True
    return False


def why_in_use(directory: Path) -> str | None:
    """Why a growctl may be at work in a run directory; None if none is.

    A process on another machine counts unless it recorded a clean exit, because its lock may not be visible here.
    """
    lock = RunPaths(directory).lock
    if holder := find_holder(directory):
        return f"it is in use by another growctl ({holder})"
    last = read_holder(lock)
    if last.host not in (None, socket.gethostname()):
        return f"it may be in use by another growctl ({last}): {lock} has no clean exit; clean it on that machine"
    return None
