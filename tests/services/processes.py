"""Starts the processes of services, skips those that are not installed, and waits for what they do."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

WAIT_SECONDS = 600.0
"""Nothing that a check waits for takes so long, however busy the machine is."""

STOP_SECONDS = 20.0
"""How long a service may take to stop before it is killed."""


def require(install: str, *programs: str, modules: Sequence[str] = ()) -> None:
    """Skips the tests of a service that is not installed, or that would start outside of namespaces of its own.

    `install`: the command that installs its programs and Python modules.
    """
    if "GROWCTL_SERVICES" not in os.environ:
        pytest.skip("changes the machine's network: run `make test-services`, which starts namespaces")
    missing = [name for name in programs if shutil.which(name, path=search_path()) is None]
    if missing := missing + [f"the module {name}" for name in modules if find_spec(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}: {install}")


def search_path() -> str:
    """PATH with the folders of Debian's daemons, which are not on every user's PATH."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


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
