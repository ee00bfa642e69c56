"""Runs on each machine of a hostfile: starts the worker in its environment and waits for it to end.

    python -m growctl.launch.start_on_host ENVIRONMENT.json MODULE SPEC.json

DeepSpeed's runners export only a few variables to other machines, and quote them wrongly for the shell. The environment
is therefore passed in a file, which no shell reads.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from stages.process.lifeline import cut_lifeline


def main() -> None:
    """Runs `python -m MODULE SPEC.json` and exits with its exit code.

    If the worker fails or is killed, this also ends the workers on other machines; otherwise pdsh would wait for them,
    and they for the failed worker.
    """
    environment, module, *arguments = sys.argv[1:]
    os.environ.update(json.loads(Path(environment).read_text()))
    code = subprocess.call([sys.executable, "-u", "-m", module, *arguments])
    if code:
        cut_lifeline()
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
