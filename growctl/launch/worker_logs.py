"""Explains why workers failed, from their log and exit code."""

import re
import signal
from pathlib import Path

_REASON = re.compile(r"(?:\S+: )?growctl: (.*)")
"""A worker's own message about its failure; pdsh prefixes the host's name."""

_SLURM_FAILURE = re.compile(r"srun: error: (Task launch for StepId=\S+ failed on node .*|Node failure on .*)")
"""What srun says if a node does not answer or has failed."""


def logged_reason(log: Path, start: int) -> str | None:
    """The last failure message that a worker logged in `log` from byte `start` on; None if there is none."""
    reasons = [match[1] for line in _lines(log, start) if (match := _REASON.fullmatch(line))]
    return reasons[-1] if reasons else None


def slurm_failure(log: Path, start: int) -> str | None:
    """The last failure of a node that srun logged in `log` from byte `start` on; None if there is none."""
    failures = [match[1] for line in _lines(log, start) if (match := _SLURM_FAILURE.fullmatch(line))]
    return failures[-1] if failures else None


def failure_reason(log: Path, start: int) -> str:
    """Why workers failed whose log is `log` from byte `start` on.

    It is their own last failure message, else a failed node that srun named, else the last error or lines.
    """
    if reason := logged_reason(log, start) or slurm_failure(log, start):
        return reason
    lines = _lines(log, start)
    errors = [line for line in lines if "Error" in line and not line.startswith(" ")]
    return errors[-1] if errors else "\n".join(lines[-5:]) or "no output"


def ending_signal(exit_code: int) -> int:
    """The signal that ended a process; 0 if it exited by itself."""
    return exit_code - 128 if exit_code > 128 else max(0, -exit_code)


def signal_reason(number: int) -> str:
    """A message about a worker that a signal ended, with the likely cause."""
    what = "the machine ran out of memory, or someone ended it" if number == signal.SIGKILL else "it crashed"
    return f"a worker was ended by signal {number}: {what}"


def _lines(log: Path, start: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace").splitlines()
