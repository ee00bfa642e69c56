"""Why workers failed, read from their log and their exit code."""

import re
import signal
from pathlib import Path

_SAID = re.compile(r"(?:\S+: )?growctl: (.*)")
"""A worker's own word on its failure, behind its host's name where pdsh collects the output."""


def told_reason(log: Path, start: int) -> str | None:
    """What a worker said of its own failure in its `log`, from the byte `start` on."""
    said = [match[1] for line in _lines(log, start) if (match := _SAID.fullmatch(line))]
    return said[-1] if said else None


def failure_reason(log: Path, start: int) -> str:
    """What a worker said of its own failure in its `log`, from the byte `start` on, else the end of what it printed."""
    if said := told_reason(log, start):
        return said
    lines = _lines(log, start)
    errors = [line for line in lines if "Error" in line and not line.startswith(" ")]
    return errors[-1] if errors else "\n".join(lines[-5:]) or "no output"


def ending_signal(exit_code: int) -> int:
    """The signal that a process ended by; 0 where it left by itself."""
    return exit_code - 128 if exit_code > 128 else max(0, -exit_code)


def signal_reason(number: int) -> str:
    """What it means that a signal ended a worker."""
    what = "the machine ran out of memory, or someone ended it" if number == signal.SIGKILL else "it crashed"
    return f"a worker was ended by signal {number}: {what}"


def _lines(log: Path, start: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace").splitlines()
