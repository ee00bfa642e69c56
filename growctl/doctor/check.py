"""What a check of the machine says, and how one is carried out so that nothing it runs into ends the others."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "failed"]

COMMAND_SECONDS = 60.0
"""Patience with a command that a check runs; most are done in a tenth of a second."""


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and what to do about it."""

    name: str
    state: State
    found: str
    fix: str | None = None
    """Where the state is not `ok`."""


@dataclass(frozen=True)
class Output:
    """What a command came to."""

    code: int
    stdout: str
    stderr: str

    @property
    def last_error(self) -> str:
        """The line that says why it failed, as Python and compilers write it."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return (errors or lines or [f"exit code {self.code}"])[-1]


def carried_out(name: str, check: Callable[[], Check]) -> Check:
    """What `check` says; where it raises, that it failed and of what."""
    try:
        return check()
    except Exception as error:  # whatever a broken machine comes up with is a finding, not the doctor's end
        return Check(
            name, "failed", f"{type(error).__name__}: {error}", "put right what failed before it, if anything did"
        )


def run_command(
    command: Sequence[str], environment: dict[str, str] | None = None, text: str = "", seconds: float = COMMAND_SECONDS
) -> Output:
    """Runs a command to its end, `text` its standard input. Raises OSError and subprocess.TimeoutExpired."""
    result = subprocess.run(
        command, env=environment, input=text, capture_output=True, text=True, timeout=seconds, check=False
    )
    return Output(result.returncode, result.stdout, result.stderr)
