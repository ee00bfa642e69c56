"""Starts the ranks of this machine and stops all of them when one fails.

    python -m growctl.launch.start_ranks NUM_RANKS PORT PYTHON-ARGUMENT...

torchrun and DeepSpeed's launcher do the same, but import torch before they start the ranks (1.3 s at each start), and
wait half a minute for ranks that do not respond. This process ignores signals, which the ranks handle themselves; but
it passes SIGUSR1, with which the runner asks for a checkpoint, to the first rank.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from stages.process.lifeline import ENDED, STDIN, VARIABLE

STARTED = "growctl.launch.start_ranks: starting"
"""The start of an attempt's first line in the log."""

LEAVING_SECONDS = 1.0
"""Time from the first failure until all ranks are killed: ranks that fail by themselves can log the reason."""

PATIENCE_SECONDS = 5.0
"""Time that ranks have to end after their runner has ended."""


def main() -> NoReturn:
    """Starts the ranks and exits with 0 once all have succeeded, or with the exit code of one that failed."""
    num_ranks, port, *arguments = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: None)  # not SIG_IGN, which the ranks would inherit
    print(f"{STARTED} {num_ranks} of python {' '.join(arguments)}", flush=True)
    ranks = [start_rank(rank, int(num_ranks), port, arguments) for rank in range(int(num_ranks))]
    signal.signal(signal.SIGUSR1, lambda number, frame: _signal(ranks[0], number))
    if os.environ.get(VARIABLE) == STDIN:
        # A request that this thread received would wait until the main thread wakes up, which is when a rank ends.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        threading.Thread(target=_end_with_stdin, args=(ranks,), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    code = see_end(ranks)
    sys.exit(code if code >= 0 else 128 - code)


def start_rank(rank: int, num_ranks: int, port: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts a rank with its position in the environment variables that torch and DeepSpeed read."""
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
    """Waits for all ranks and kills the others after the first failure; returns 0 or a failed rank's exit code.

    If several ranks failed by themselves, this prefers one that a signal ended: the others failed because of it.
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
    """Kills ranks that outlive their runner: they watch the same pipe, but a stopped or stuck rank cannot react."""
    while os.read(0, 1):
        pass
    time.sleep(PATIENCE_SECONDS)
    for process in ranks:
        _signal(process, signal.SIGKILL)
    os._exit(ENDED)


def _signal(rank: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):  # it has ended already
        os.kill(rank.pid, number)


if __name__ == "__main__":
    main()
