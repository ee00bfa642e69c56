"""Explains why workers failed, from their log and exit code."""

import re
import signal
from pathlib import Path

_REASON = re.compile(r"(?:\S+: )?growctl: (.*)")
"""A worker's own message about its failure; pdsh prefixes the host's name."""

_PDSH = re.compile(r"pdsh@\S+: (\S+): ssh exited with exit code (126|127|255)")
"""What pdsh reports of a machine if ssh itself failed (255) or the machine cannot run the command. All other codes are
those of workers."""

_SSH = re.compile(r"ssh: .+|\S+: Permission denied \(.+|Host key verification failed\.")
"""What ssh reports; mpirun does not say on which machine."""

_NO_QUESTION = "must work without a password or a question"

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


def failure_reason(log: Path, start: int, exit_code: int = 1) -> str:
    """Why workers failed whose log is `log` from byte `start` on.

    It is their own last failure message, else a node or a machine that failed, as it comes before the errors of workers
    that miss it, else the signal that `exit_code` names, else the last error or lines.
    """
    if reason := logged_reason(log, start) or slurm_failure(log, start) or unreached_machine(log, start):
        return reason
    if ended_by := ending_signal(exit_code):
        return signal_reason(ended_by)
    lines = _lines(log, start)
    if told := next((line for line in lines if _SSH.fullmatch(line)), None):
        return f"ssh from mpirun failed ({told.removesuffix('.')}); ssh to every machine {_NO_QUESTION}"
    if errors := [line for line in lines if "Error" in line and not line.startswith(" ")]:
        return errors[-1]
    return "\n".join(lines[-5:]) or "no output"


def unreached_machine(log: Path, start: int) -> str | None:
    """The first machine that pdsh cannot reach or start workers on, with the reason, from byte `start` of `log` on.

    None if there is none. The workers on other machines would wait for it.
    """
    last_lines: dict[str, str] = {}
    for line in _lines(log, start):
        if not (match := _PDSH.fullmatch(line)):
            host, _, text = line.partition(": ")
            last_lines[host] = text
            continue
        host, code = match[1], match[2]
        told = f" ({last_lines[host].removesuffix('.')})" if last_lines.get(host) else ""
        same_path = "growctl must be installed at the same path on every machine"
        fix = f"`ssh {host} true` {_NO_QUESTION}" if code == "255" else same_path
        return f"ssh to {host} ended with exit code {code}{told}; {fix}"
    return None


def ending_signal(exit_code: int) -> int:
    """The signal that ended a process, which a shell reports as 128 more; 0 if it exited by itself."""
    number = exit_code - 128 if exit_code > 128 else -exit_code
    return number if 0 < number <= signal.SIGRTMAX else 0


def signal_reason(number: int) -> str:
    """A message about a worker that a signal ended, with the likely cause."""
    what = "the machine ran out of memory, or someone ended it" if number == signal.SIGKILL else "it crashed"
    return f"a worker was ended by signal {number}: {what}"


def _lines(log: Path, start: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace").splitlines()
