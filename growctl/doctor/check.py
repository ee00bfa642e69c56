"""The result of one doctor check, and how a check runs so that its errors do not stop the others."""

import errno
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""No space is left, or none of the user's quota."""

State = Literal["ok", "warning", "failed"]

COMMAND_SECONDS = 60.0
"""Timeout of a command that a check runs; most take a tenth of a second."""


@dataclass(frozen=True)
class Check:
    """The result of a check: what was checked, what was found, and how to fix it."""

    name: str
    state: State
    found: str
    """What was found, in words."""
    fix: str | None = None
    """How to fix it; set if the state is not `ok`."""


@dataclass(frozen=True)
class DoctorDocument:
    """The checks of a machine, as `growctl doctor --json` prints them."""

    ok: bool
    """Whether no check failed. Warnings do not count."""

    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Output:
    """The result of a command."""

    code: int
    stdout: str
    stderr: str

    @property
    def last_error(self) -> str:
        """The line with the reason for a failure, in the form that Python and compilers print it."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or [f"exit code {self.code}"])[-1]


def carried_out(name: str, check: Callable[[], Check]) -> Check:
    """The result of `check`; if it raises, a failed check with the error."""
    try:
        return check()
    except OSError as error:
        if error.errno not in DISK_FULL:
            return _broken(name, error)
        return full_disk(name, error)
    except Exception as error:  # any error on a broken machine is a finding and must not end the doctor
        return _broken(name, error)


def full_disk(name: str, error: OSError) -> Check:
    """The failed check `name`, whose `error` is one of DISK_FULL."""
    place = f" ({error.filename})" if error.filename else ""
    fix = "free some space, or store runs elsewhere with --runs-dir or GROWCTL_RUNS_DIR"
    return Check(name, "failed", f"the disk is full: {error.strerror}{place}", fix)


def _broken(name: str, error: Exception) -> Check:
    return Check(name, "failed", f"{type(error).__name__}: {error}", "fix the earlier failures first, if any")


def run_command(
    command: Sequence[str], environment: dict[str, str] | None = None, text: str = "", seconds: float = COMMAND_SECONDS
) -> Output:
    """Runs a command to its end, with `text` as standard input. Raises OSError and subprocess.TimeoutExpired."""
    result = subprocess.run(
        command, env=environment, input=text, capture_output=True, text=True, timeout=seconds, check=False
    )
    return Output(result.returncode, result.stdout, result.stderr)
