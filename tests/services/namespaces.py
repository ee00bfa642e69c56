"""Runs a command in namespaces of its own, which leave nothing behind.

The command sees a network with nothing but a loopback device, an empty /run, and only its own processes. When it ends,
or this process does, the kernel ends every process in there.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence

_ENTER = ("unshare", "--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")

_FIRST_PROCESS = 'mount -t tmpfs -o mode=755 none /run && ip link set lo up && "$@"; exit $?'
"""A shell, which waits for orphans too: a Python as the first process would leave zombies, which look alive."""


def refusal() -> str | None:
    """Why this machine cannot run a command in such namespaces; None if it can."""
    if os.geteuid() != 0:
        return "needs root, to start daemons in namespaces"
    for program in ("unshare", "ip", "mount"):
        if shutil.which(program) is None:
            return f"needs {program}: apt-get install util-linux iproute2 mount"
    tried = subprocess.run(_command(["true"]), capture_output=True, text=True, check=False)
    return f"cannot create namespaces: {tried.stderr.strip()}" if tried.returncode else None


def run_in_namespaces(command: Sequence[str]) -> int:
    """Runs `command` and returns its exit code. If this process is interrupted, kills all that the command started."""
    process = subprocess.Popen(_command(command), start_new_session=True)
    try:
        return process.wait()
    finally:
        process.kill()  # and, by --kill-child, everything in the namespaces
        process.wait()


def _command(command: Sequence[str]) -> list[str]:
    return [*_ENTER, "sh", "-c", _FIRST_PROCESS, "sh", *command]
