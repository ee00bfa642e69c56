"""What starts on each machine of a hostfile in a worker's place: starts the worker in its environment, sees it end.

    python -m growctl.launch.start_on_host ENVIRONMENT.json MODULE SPEC.json

DeepSpeed's runners export few variables to other machines, and put those into shell text with quotes that do not hold.
A file does not pass through a shell.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from stages.process.lifeline import cut_lifeline


def main() -> None:
    """Runs `python -m MODULE SPEC.json`, and ends with its exit code.

    A worker that fails, even one that is killed, ends those on other machines too: pdsh would wait for them, and they
    for it.
    """
    environment, module, *arguments = sys.argv[1:]
    os.environ.update(json.loads(Path(environment).read_text()))
    code = subprocess.call([sys.executable, "-u", "-m", module, *arguments])
    if code:
        cut_lifeline()
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
