"""Starts real workers in tests with growctl's launcher, gloo and two cores."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from growctl.bugs import DEBUG_VARIABLE
from tests import warm_start

REPOSITORY = Path(__file__).resolve().parent.parent

HANG_SECONDS = 600.0
"""Nothing that a test waits for takes so long, however busy the machine: what does hangs."""


BUG = "this is a bug in growctl"
"""What growctl says of an internal error. No test of its output expects that, except those in test_bugs.py."""

PRINT_TRACEBACKS = {DEBUG_VARIABLE: "1"}
"""What makes growctl print the traceback of an internal error too."""


class TrainingGuard:
    """Keeps `make test-fast` fast: a test may start training processes only if it is marked `trains`."""

    may_train = True
    """Set by conftest.py before each test. Outside of pytest, nothing is refused."""

    @classmethod
    def check(cls) -> None:
        """Fails the running test if it lacks the mark."""
        assert cls.may_train, "this test trains: mark it @pytest.mark.trains, so that `make test-fast` leaves it out"

    @classmethod
    @contextmanager
    def rejection(cls) -> Iterator[None]:
        """Lets the block start a growctl that must reject its input, and so trains nothing."""
        before, cls.may_train = cls.may_train, True
        try:
            yield
        finally:
            cls.may_train = before

    @classmethod
    def watch(cls) -> None:
        """From now on, checks every command that this process starts."""
        start = subprocess.Popen.__init__

        @wraps(start)
        def checked(process: subprocess.Popen, args: Any, *rest: Any, **named: Any) -> None:
            if trains([args] if isinstance(args, str | bytes | os.PathLike) else args):
                cls.check()
            start(process, args, *rest, **named)

        setattr(subprocess.Popen, "__init__", checked)  # noqa: B010 (mypy knows only one signature)


def trains(command: Iterable[str | bytes | os.PathLike]) -> bool:
    """Whether a command starts ranks: `run` and `plan --measure` of growctl, or the ranks of a module."""
    words = [os.fsdecode(word) for word in command]
    if "growctl.launch.start_ranks" in words:
        return "-m" in words[words.index("growctl.launch.start_ranks") :]
    if not any("growctl.cli.app" in word or Path(word).name == "growctl" for word in words[:4]):
        return False
    return bool({"run", "--measure"} & set(words)) and not {"--dry-run", "--help"} & set(words)


def launch(script: Path, num_ranks: int, *arguments: str) -> str:
    """Runs `script` on `num_ranks` ranks to its end; its output. Fails the test where it fails."""
    TrainingGuard.check()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "growctl.launch.start_ranks", str(num_ranks), str(port)]
    environment = os.environ | {
        "DS_ACCELERATOR": "cpu",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPOSITORY),
        warm_start.VARIABLE: "1",
    }
    result = subprocess.run(
        [*command, str(script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]
    return result.stdout
