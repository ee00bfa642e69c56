"""Describes a process by machine, process id and start time, so that others can tell whether it has ended.

Imports no torch.

The start time tells processes apart, because the kernel reuses process ids. It counts from the machine's start, so the
id of that is part of the description, as is the container's namespace of process ids: what runs in another container or
on another machine cannot be seen from here.
"""

import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from model.strict import Strict


class Holder(Strict):
    """The process that holds or held a file or directory, as it describes itself there. Unknown values are None."""

    process: int | None = None
    host: str | None = None
    since: datetime | None = None
    process_start: int | None = None
    """When the process started, in clock ticks since boot."""
    boot: str | None = None
    """The kernel's id of the machine's last start."""
    pid_namespace: str | None = None

    @classmethod
    def me(cls) -> "Holder":
        """This process."""
        return cls(
            process=os.getpid(),
            host=socket.gethostname(),
            since=datetime.now(UTC).replace(microsecond=0),
            process_start=_start_if_running(os.getpid()),
            boot=_boot(),
            pid_namespace=_pid_namespace(),
        )

    @property
    def is_me(self) -> bool:
        """Whether this is the process that asks."""
        return self == self.me().model_copy(update={"since": self.since})

    @property
    def is_here(self) -> bool:
        """Whether the process ran where this one can see it: on this machine, and not in another container."""
        return (self.host, self.pid_namespace) == (socket.gethostname(), _pid_namespace())

    @property
    def gone(self) -> bool:
        """Whether the process ran here and has ended. False if that is not certain."""
        if not self.is_here or self.process is None or self.process_start is None:
            return False
        return self.boot != _boot() or _start_if_running(self.process) != self.process_start

    def __str__(self) -> str:
        if self.process is None or self.since is None:
            return "an unknown process"
        return f"process {self.process} on {self.host} since {self.since.astimezone():%Y-%m-%d %H:%M}"


def read_holder(path: Path) -> Holder:
    """The holder that a file names; all its fields are None if the file is empty, damaged, missing or unreadable."""
    try:
        return Holder.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return Holder()


def _start_if_running(process: int) -> int | None:
    """When a process on this machine started, in clock ticks since boot; None if no such process is seen to run."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = status.rpartition(")")[2].split()  # the process name may contain spaces and parentheses
    return None if state in "ZX" else int(fields[18])  # Z: killed, and its parent has not noticed


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str | None:
    with suppress(OSError):  # some sandboxes hide it
        return os.readlink("/proc/self/ns/pid")
    return None
