"""Starts real workers in tests with growctl's launcher, gloo and two cores."""

import os
import socket
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

HANG_SECONDS = 600.0
"""Nothing that a test waits for takes so long, however busy the machine: what does hangs."""


class TrainingGuard:
    """Keeps `make test-fast` fast: a test may start training processes only if it is marked `trains`."""

    may_train = True
    """Set by conftest.py before each test. Outside of pytest, as in the soak, nothing is refused."""

    @classmethod
    def check(cls) -> None:
        """Fails the running test if it lacks the mark."""
        assert cls.may_train, "this test trains: mark it @pytest.mark.trains, so that `make test-fast` leaves it out"


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
