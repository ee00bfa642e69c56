"""The process that runs a stage's workers: its log, its exit code, and how growctl stops it."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from growctl.launch.machines import Launch
from growctl.launch.worker_logs import failure_reason
from model.errors import Failure
from stages.process.lifeline import STDIN, VARIABLE, Lifeline

ENDING_SECONDS = 10.0
"""Time that workers have to end after their standard input is closed; start_ranks.py kills those that do not."""

STOP_SECONDS = 40.0
"""Time that workers on other machines have to end: DeepSpeed's launcher there gives them 30 seconds."""


class Workers:
    """Started workers, which end with the `with` block."""

    def __init__(self, launch: Launch, log: Path) -> None:
        """Starts the workers in a new session, so that Ctrl-C reaches only this process; appends all output to `log`.

        If their lifeline is standard input, it is a pipe that nobody writes to. The pipe closes when this process ends,
        however it ends, and so ends the workers.
        """
        self._lifeline = Lifeline(launch.lifeline) if launch.lifeline else None
        if self._lifeline:
            self._lifeline.start()
        for path, content in launch.files.items():
            with open(path, "w", opener=_private) as file:
                file.write(content)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                launch.command,
                cwd=launch.directory,
                env=os.environ | launch.environment,
                stdin=subprocess.DEVNULL if launch.lifeline else subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def running(self) -> bool:
        """Whether any worker is running. Call it often: it also renews the workers' lifeline."""
        if self._lifeline:
            self._lifeline.beat()
        return self._process.poll() is None

    def ask_to_save(self) -> None:
        """Asks the workers, once they have begun, to save and exit."""
        if self._lifeline:
            self._lifeline.ask_to_save()
        else:
            self._process.send_signal(signal.SIGUSR1)

    def wait(self, seconds: float | None = None) -> int:
        """Waits for the workers and returns their exit code; raises subprocess.TimeoutExpired after `seconds`.

        Workers with a lifeline file end when it is no longer renewed.
        """
        return self._process.wait(seconds)

    def kill(self) -> None:
        """Kills unresponsive workers on this machine; does nothing for workers with a lifeline file."""
        if not self._lifeline:
            self._kill_group()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: Any) -> None:
        """Ends the workers, and returns once their launcher has ended.

        Those with a lifeline file end by themselves on all machines once it is removed. DeepSpeed's runner would kill
        all of this user's launchers there, also those of other runs, so it gets a signal only if that does not help.
        """
        if self._lifeline:
            self._lifeline.end()
        elif self._process.stdin:
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS if self._lifeline else ENDING_SECONDS)
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        if self._process.poll() is None or not self._lifeline:
            self._kill_group()  # on this machine also workers that outlived their launcher

    def _kill_group(self) -> None:
        """Kills the workers' launcher and its process group, to which the workers on this machine belong."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def run_apart(command: Sequence[str], environment: Mapping[str, str], log: Path, seconds: float | None = None) -> None:
    """Runs a command to its end, or for `seconds`, in a process that ends with this one and appends to `log`.

    Raises Failure with the reason if it fails.
    """
    log_start = log.stat().st_size if log.exists() else 0
    launch = Launch(list(command), {"PYTHONSAFEPATH": "1", VARIABLE: STDIN, **environment})
    with Workers(launch, log) as process:
        try:
            exit_code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failure(f"it did not end within {seconds:.0f} seconds") from None
    if exit_code != 0:
        raise Failure(failure_reason(log, log_start, exit_code))


def _private(path: str, flags: int) -> int:
    """Opens a file that only its owner may read: an environment may contain secrets."""
    return os.open(path, flags, 0o600)
