"""The lock of a run: one growctl at a time holds it, known by process, machine and since when.

The lock is the kernel's and goes with its process, however it ends; what the lock file says is only for people. On file
systems without locks a file beside it stands for the lock. That one stays where a process is killed; it is taken over
when it is of this machine and its process is gone, told by when that process started: numbers of processes are used
again.
"""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from growctl.run.requests import RunError
from growctl.runs_dir import LOCK, LOCK_STAND_IN

HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


@dataclass(frozen=True)
class Holder:
    """A growctl that is at a run, or was; as far as its file says."""

    process: int | None = None
    host: str | None = None
    since: str | None = None
    """ISO 8601, in UTC."""
    process_start: int | None = None
    """When the process started, in the kernel's clock ticks since the machine did."""

    @classmethod
    def me(cls) -> "Holder":
        """This process."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(os.getpid(), socket.gethostname(), now, _process_start(os.getpid()))

    @property
    def gone(self) -> bool:
        """Whether it was a process of this machine, and is no more."""
        if self.host != socket.gethostname() or self.process is None or self.process_start is None:
            return False
        return _process_start(self.process) != self.process_start

    def __str__(self) -> str:
        if self.process is None:
            return "a process that does not say which"
        where = f" on {self.host}" if self.host else ""
        return f"process {self.process}{where}" + (f" since {_local(self.since)}" if self.since else "")


@contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Keeps a run directory for this process; RunError where another `growctl run` has it. Ends with the process."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in HELD:
                raise RunError(f"{directory} is in use by another growctl ({read_holder(directory / LOCK)})") from None
            if error.errno not in NO_LOCKS:
                raise OSError(error.errno, error.strerror, str(directory / LOCK)) from error
            with _stand_in(directory):
                yield
            return
        lock.truncate(0)
        lock.write(json.dumps(asdict(Holder.me())))
        lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)  # left, not lost


def find_holder(directory: Path) -> Holder | None:
    """Who holds a run directory, by asking for a share of its lock for an instant; None where nobody does.

    Raises OSError where that cannot be told.
    """
    path = directory / LOCK
    if not path.is_file():
        return None
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in HELD:
                return read_holder(path)
            if error.errno not in NO_LOCKS:
                raise
            holder = read_holder(directory / LOCK_STAND_IN)
            return None if not (directory / LOCK_STAND_IN).exists() or holder.gone else holder
    return None


def read_holder(path: Path) -> Holder:
    """What a lock file says; nothing but a process in those that growctl once wrote, nothing in one left in peace."""
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return Holder()
    if type(said) is int:
        return Holder(said)
    values: dict[str, Any] = said if isinstance(said, dict) else {}
    kinds = {"process": int, "host": str, "since": str, "process_start": int}
    return Holder(**{key: values[key] for key, kind in kinds.items() if type(values.get(key)) is kind})


@contextmanager
def _stand_in(directory: Path) -> Iterator[None]:
    path = directory / LOCK_STAND_IN
    while True:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            break
        except FileExistsError:
            holder = read_holder(path)
            if not holder.gone:
                raise RunError(
                    f"{directory} is in use by another growctl ({holder}), by {path}: this file system has no locks; "
                    "if you are sure that nobody is at it, remove that file"
                ) from None
            _clear(path, holder)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(Holder.me()), file)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _clear(path: Path, stale: Holder) -> None:
    """Takes away a file that stood for the lock of a dead process, and no other that came in its place meanwhile."""
    mine = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        path.rename(mine)
    except FileNotFoundError:
        return
    if read_holder(mine) == stale:
        mine.unlink()
    else:
        mine.rename(path)


def _process_start(process: int) -> int | None:
    """When a process of this machine started, in clock ticks since the machine did; None where there is no such one."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    return int(status.rpartition(")")[2].split()[19])  # the name before may have spaces and parentheses


def _local(moment: str | None) -> str:
    """A time on this machine's clock, to the minute; as it is where it is none."""
    try:
        return f"{datetime.fromisoformat(moment or '').astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return str(moment)
