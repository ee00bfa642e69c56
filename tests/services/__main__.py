"""Tries growctl on real services, started on this machine and reachable from it alone.

Run by `make test-services`. Needs root, for network namespaces; skips by name each service that is not installed.
"""

import argparse
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.services.service import Service, passes

SERVICES = ("hostfile", "object_store", "slurm")
"""The modules of this package that offer a SERVICE."""

NAMESPACES = ("unshare", "--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")
"""A network with nothing but a loopback device, and processes that the kernel ends with the first of them."""

FIRST_PROCESS = 'mount -t tmpfs -o mode=755 none /run && ip link set lo up && "$@"; exit $?'
"""A shell, which waits for orphans too: a Python as the first process would leave zombies, which look alive."""


def main() -> int:
    """Runs the checks. Returns the exit code: 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.services", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SERVICES)}; default: all")
    parser.add_argument("--only", default="", metavar="TEXT", help="run the checks with this in their names alone")
    parser.add_argument("--inside", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(SERVICES)):
        parser.error(f"no service {', '.join(unknown)}; there are {', '.join(SERVICES)}")
    chosen = {}
    for name in options.names or SERVICES:
        service: Service = importlib.import_module(f"tests.services.{name}").SERVICE
        chosen[name] = replace(service, checks={n: check for n, check in service.checks.items() if options.only in n})
    if options.inside:
        return _run(chosen, options.inside)
    if reason := _refusal():
        print(f"every service is skipped: {reason}")
        return 0
    return _run_inside(sys.argv[1:])


def _refusal() -> str | None:
    """Why this machine cannot run a command in namespaces; None if it can."""
    if os.geteuid() != 0:
        return "needs root, to start daemons in namespaces"
    for program in ("unshare", "ip", "mount"):
        if shutil.which(program) is None:
            return f"needs {program}: apt-get install util-linux iproute2 mount"
    tried = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True, check=False)
    return f"cannot create namespaces: {tried.stderr.strip()}" if tried.returncode else None


def _run_inside(arguments: list[str]) -> int:
    """Runs this script again in namespaces of its own. Removes the services' files if every check passed."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="growctl-services-"))  # short: paths of sockets may have 107 characters
    folder.chmod(0o755)  # services with users of their own
    again = [sys.executable, "-m", "tests.services", "--inside", str(folder), *arguments]
    process = subprocess.Popen([*NAMESPACES, "sh", "-c", FIRST_PROCESS, "sh", *again], start_new_session=True)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        print("interrupted: every service is stopped", file=sys.stderr)
        code = 130
    finally:
        process.kill()  # and, by --kill-child, everything in the namespaces
        process.wait()
    if code not in (0, 130):
        print(f"the services' files are in {folder}")
    else:
        shutil.rmtree(folder)
    return code


def _run(chosen: dict[str, Service], folder: Path) -> int:
    passed = True
    for name, service in chosen.items():
        (folder / name).mkdir()
        passed &= passes(name, service, folder / name)
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
