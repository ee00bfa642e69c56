"""What starts the ranks of this machine and sees them end: the first that fails ends the others.

    python -m growctl.launch.start_ranks NUM_RANKS PORT PYTHON-ARGUMENT...

DeepSpeed's launcher for one machine does as much, but imports torch before it starts them, and gives ranks that no
longer answer half a minute. Signals mean nothing here: what they mean to the ranks is the ranks' business.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from stages.process.lifeline import ENDED, STDIN, VARIABLE

STARTED = "growctl.launch.start_ranks: starting"
"""What a log has at the beginning of each attempt."""

LEAVING_SECONDS = 1.0
"""From the first failure to the end of all: those that fail by themselves may say why."""

PATIENCE_SECONDS = 5.0
"""Patience with ranks that do not end with their runner."""


def main() -> NoReturn:
    """Starts the ranks and ends with 0 once all have, or with the exit code of one that failed."""
    num_ranks, port, *arguments = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: None)  # not SIG_IGN, which the ranks would inherit
    print(f"{STARTED} {num_ranks} of python {' '.join(arguments)}", flush=True)
    ranks = [start_rank(rank, int(num_ranks), port, arguments) for rank in range(int(num_ranks))]
    if os.environ.get(VARIABLE) == STDIN:
        threading.Thread(target=_end_with_stdin, args=(ranks,), daemon=True).start()
    code = see_end(ranks)
    sys.exit(code if code >= 0 else 128 - code)


def start_rank(rank: int, num_ranks: int, port: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts a rank, which finds its place in its environment, in the words that torch and DeepSpeed know."""
    place = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": num_ranks,
        "LOCAL_SIZE": num_ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    environment = os.environ | {name: str(value) for name, value in place.items()}
    return subprocess.Popen([sys.executable, "-u", *arguments], env=environment)


def see_end(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Waits for all ranks; after the first failure ends the others. 0, or the exit code of one that failed.

    Of several that failed by themselves, one that a signal ended: the others failed for want of it.
    """
    running = {process.pid: rank for rank, process in enumerate(ranks)}
    failed: list[int] = []
    deadline = None
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG if failed else 0)
        if pid in running:
            code = os.waitstatus_to_exitcode(status)
            rank = running.pop(pid)
            if code:
                print(f"growctl.launch.start_ranks: rank {rank} exits with return code = {code}", flush=True)
                failed.append(code)
                deadline = deadline or time.monotonic() + LEAVING_SECONDS
        elif deadline and time.monotonic() >= deadline:
            _kill(running)
            return min(failed)
        elif failed:
            time.sleep(0.02)
    return min(failed, default=0)


def _kill(running: dict[int, int]) -> None:
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _end_with_stdin(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """The ranks hang on the same pipe; one that is stopped, or stuck, is ended all the same."""
    while os.read(0, 1):
        pass
    time.sleep(PATIENCE_SECONDS)
    for process in ranks:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has ended
            continue
    os._exit(ENDED)


if __name__ == "__main__":
    main()
