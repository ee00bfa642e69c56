"""Finds the processes that hold runs and datasets, from their lock files."""

import fcntl
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from growctl.runs.lock import find_holder
from growctl.runs.stages import StageStatus, modified
from growctl.runs_dir import RunPaths
from stages.process.holder import Holder
from stages.stage_dir import StagePaths

FRESH_SECONDS = 60.0
"""A run whose files changed less than this many seconds ago may be running where its lock cannot be seen from here."""


@dataclass(frozen=True)
class RunningProcess:
    """The process that holds a run directory."""

    process: int | None
    host: str | None
    here: bool
    since: float


def process_in(directory: Path, notes: list[str]) -> RunningProcess | None:
    """The process that holds a run directory; None if no process does. The lock file outlives the lock."""
    lock = RunPaths(directory).lock
    try:
        holder = find_holder(directory)
        if holder is None:
            return None
        status = lock.stat()
    except OSError as error:
        notes.append(f"{lock}: cannot check whether a growctl holds the run: {error.strerror}")
        return None
    here = _locked_here(status.st_ino, holder.process) or holder.host == socket.gethostname()
    return RunningProcess(holder.process, holder.host, here, status.st_mtime)


def is_held(lock: Path) -> bool:
    """Whether a process holds `lock`. Takes a shared lock for an instant to find out."""
    if not lock.is_file():
        return False
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _locked_here(inode: int, process: int | None) -> bool:
    """Whether `process` holds a lock on the file with that inode, according to this machine's kernel."""
    try:
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    return any(f" {process} " in line and f":{inode} " in line for line in locks)


def changed_a_moment_ago(stages: Sequence[StageStatus], last: Holder) -> list[str]:
    """A warning if the run's files changed a moment ago although no process holds the run.

    There is no warning if the `last` holder exited cleanly, or ran on this machine, where its lock would be seen.
    """
    directories = [StagePaths(Path(stage.directory)) for stage in stages if stage.directory]
    times = [modified(path) for stage in directories for path in (stage.metrics, stage.log)]
    age = time.time() - max((moment for moment in times if moment), default=0.0)
    if abs(age) > FRESH_SECONDS or last == Holder() or last.host == socket.gethostname():
        return []
    return [
        f"its files changed {max(0, round(age))} s ago; it may be running on another machine whose lock cannot be seen "
        "here"
    ]
