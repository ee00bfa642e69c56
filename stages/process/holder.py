"""Describes a process by machine, process id and start time, so that others can tell whether it has ended.

Imports no torch.

The start time tells processes apart, because the kernel reuses process ids. It counts from the machine's start, so the
id of that is part of the description, as is the container's namespace of process ids: what runs in another container or
on another machine cannot be seen from here.
"""

import os
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


@dataclass(frozen=True)
class Holder:
    """The process that holds or held a file or directory, as it describes itself there. Unknown values are None."""

    process: int | None = None
    host: str | None = None
    since: str | None = None
    """ISO 8601, in UTC."""
    process_start: int | None = None
    """When the process started, in clock ticks since boot."""
    boot: str | None = None
    """The kernel's id of the machine's last start."""
    pid_namespace: str | None = None

    @classmethod
    def me(cls) -> "Holder":
        """This process."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        started = _start_if_running(os.getpid())
        return cls(os.getpid(), socket.gethostname(), now, started, _boot(), _pid_namespace())

    @classmethod
    def parse(cls, document: bytes) -> "Holder":
        """The holder that the content of a file names; all its fields are None if the content is empty or damaged."""
        try:
            return TypeAdapter(cls).validate_json(document)
        except ValueError:
            return cls()

    @property
    def is_me(self) -> bool:
        """Whether this is the process that asks."""
        return replace(self, since=None) == replace(Holder.me(), since=None)

    @property
    def is_here(self) -> bool:
        """Whether the process ran where this one can see it: on this machine, and not in another container."""
        return (self.host, self.pid_namespace) == (socket.gethostname(), _pid_namespace())

    @property
    def gone(self) -> bool:
        """Whether the process ran here and has ended. False if that is not certain."""
        if not self.is_here or self.process is None or self.process_start is None:
            return False
        if self.boot != _boot():
            return True
        started = _start_if_running(self.process)
        return started != self.process_start and not (started is None and _is_hidden(self.process))

    def __str__(self) -> str:
        if self.process is None:
            return "an unknown process"
        where = f" on {self.host}" if self.host else ""
        return f"process {self.process}{where}" + (f" since {_local(self.since)}" if self.since else "")


def read_holder(path: Path) -> Holder:
    """The holder that a file names; all its fields are None if the file is empty, missing or unreadable."""
    try:
        return Holder.parse(path.read_bytes())
    except OSError:
        return Holder()


def _start_if_running(process: int) -> int | None:
    """When a process on this machine started, in clock ticks since boot; None if no such process is seen to run."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = status.rpartition(")")[2].split()  # the process name may contain spaces and parentheses
    return None if state in "ZX" else int(fields[18])  # Z: killed, and its parent has not noticed


def _is_hidden(process: int) -> bool:
    """Whether there is a process that only its user can see: /proc may hide the processes of other users."""
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        pass
    return False


def _boot() -> str | None:
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return None


def _pid_namespace() -> str | None:
    with suppress(OSError):
        return os.readlink(_PID_NAMESPACE)
    return None


def _local(moment: str | None) -> str:
    """A time in the local time zone, to the minute; the text unchanged if it is not a time."""
    try:
        return f"{datetime.fromisoformat(moment or '').astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return str(moment)
