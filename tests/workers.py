"""Starting real workers in tests: the DeepSpeed launcher, gloo, two cores."""

import base64
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def launch(script: Path, num_ranks: int, *arguments: str, timeout: float = 120) -> str:
    """Runs `script` on `num_ranks` ranks to its end; its output. Fails the test where it fails."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    world = base64.urlsafe_b64encode(json.dumps({"localhost": list(range(num_ranks))}).encode()).decode()
    command = [sys.executable, "-m", "deepspeed.launcher.launch", f"--world_info={world}", f"--master_port={port}"]
    environment = os.environ | {
        "DS_ACCELERATOR": "cpu",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(REPOSITORY),
    }
    result = subprocess.run(
        [*command, "--no_local_rank", str(script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]
    return result.stdout
