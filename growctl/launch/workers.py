"""Started workers: one process that lives as long as they do, its output in a log, and how it ends."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from growctl.launch.machines import Launch
from stages.process.lifeline import Lifeline

ENDING_SECONDS = 10.0
"""Patience with workers whose standard input has ended: what started them ends those that stay (start_ranks.py)."""


STOP_SECONDS = 40.0
"""Patience with workers on other machines: DeepSpeed's launcher there gives its own 30 seconds."""


def _start(launch: Launch, log: Path) -> subprocess.Popen[bytes]:
    """Starts the workers, with all output appended to `log`, in a session of their own: Ctrl-C reaches only us.

    Where they hang on standard input, it is a pipe that nobody writes to: it ends when this process does, and with it
    the workers, however this process dies.
    """
    for path, content in launch.files.items():
        with open(path, "w", opener=_private) as file:
            file.write(content)
    with log.open("ab") as output:
        return subprocess.Popen(
            launch.command,
            cwd=launch.directory,
            env=os.environ | launch.environment,
            stdin=subprocess.PIPE if launch.lifeline is None else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _private(path: str, flags: int) -> int:
    """Opens a file that only its owner may read: an environment may hold what others should not see."""
    return os.open(path, flags, 0o600)


def _stop(process: subprocess.Popen[bytes], patience: float) -> None:
    """Ends the workers; returns once the process that started them is gone. It may end by itself for `patience` s."""
    if process.stdin:
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    if process.poll() is None or process.stdin:
        _kill(process)  # on this machine also those that outlived what started them


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the process that started the workers, and on this machine them too: they are of its process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Workers:
    """Started workers, which end when the `with` block does."""

    def __init__(self, launch: Launch, log: Path) -> None:
        """Starts them, with all output appended to `log`."""
        self._lifeline = Lifeline(launch.lifeline) if launch.lifeline else None
        if self._lifeline:
            self._lifeline.start()
        self._process = _start(launch, log)

    def running(self) -> bool:
        """Whether any worker is left. To be asked often: it also tells them that we are here."""
        if self._lifeline:
            self._lifeline.beat()
        return self._process.poll() is None

    def wait(self, seconds: float | None = None) -> int:
        """Waits for workers of this machine; returns their exit code. subprocess.TimeoutExpired after `seconds`."""
        assert self._lifeline is None, "workers on other machines end unless they are told that we are here"
        return self._process.wait(seconds)

    @property
    def exit_code(self) -> int:
        """What they ended with, once none is left."""
        return self._process.wait()

    def kill(self) -> None:
        """Ends workers that do not answer, on this machine at once."""
        if not self._lifeline:
            _kill(self._process)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: Any) -> None:
        """Ends them. Without their file they end by themselves, on all machines.

        DeepSpeed's runner would kill every launcher of this user there, of other runs too, so it is told nothing unless
        that does not help.
        """
        if self._lifeline:
            self._lifeline.end()
        _stop(self._process, patience=STOP_SECONDS if self._lifeline else ENDING_SECONDS)
