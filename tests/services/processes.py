"""Starts the processes of services, and waits for what they do."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.services.service import search_path

WAIT_SECONDS = 600.0
"""Nothing that a check waits for takes so long, however busy the machine is."""

STOP_SECONDS = 20.0
"""How long a service may take to stop before it is killed."""


def environment(**variables: str) -> dict[str, str]:
    """This process's environment with the folders of daemons on PATH, and `variables`."""
    return os.environ | {"PATH": search_path()} | variables


@contextmanager
def background(
    command: Sequence[str | Path], log: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, which writes to `log`. Ends it by SIGTERM, then by SIGKILL."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment(**(variables or {})),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def output_of(
    command: Sequence[str | Path],
    variables: Mapping[str, str] | None = None,
    *,
    folder: Path | None = None,
    code: int | None = 0,
) -> str:
    """What a command prints, on both streams. Fails unless it exits with `code`; None: any."""
    result = subprocess.run(
        [str(word) for word in command],
        env=environment(**(variables or {})),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    words = " ".join(str(word) for word in command)
    assert code in (None, result.returncode), f"{words}: exit code {result.returncode}: {result.stdout[-2000:]}"
    return result.stdout


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Waits until `condition` holds. Fails after WAIT_SECONDS, naming `what`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < WAIT_SECONDS, f"waited {WAIT_SECONDS:.0f} s in vain: {what}"
        time.sleep(0.1)
