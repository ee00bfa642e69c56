"""What the script knows of a service, and how it runs the service's checks.

Everything runs in a network namespace that has only its loopback device, and in a process namespace that ends with the
script: services may use any port, and no process outlives the script.
"""

import importlib.util
import os
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Service:
    """A service, and the checks that run on it."""

    programs: tuple[str, ...]
    modules: tuple[str, ...]
    """The programs and Python modules that it needs."""

    install: str
    """The command that installs both."""

    start: Callable[[Path], AbstractContextManager[Any]]
    """Starts the service with all its files in a folder, yields what the checks need, and stops the service."""

    checks: Mapping[str, Callable[[Any], str]]
    """By name. A check returns one short line of what it saw, or raises AssertionError."""

    def missing(self) -> list[str]:
        """The programs and modules that this machine lacks."""
        programs = [name for name in self.programs if shutil.which(name, path=search_path()) is None]
        return programs + [f"the module {name}" for name in self.modules if importlib.util.find_spec(name) is None]


def search_path() -> str:
    """PATH with the folders of Debian's daemons, which are not on every user's PATH."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def passes(name: str, service: Service, folder: Path) -> bool:
    """Starts a service in `folder`, makes its checks, and stops it. Skips a service that is not installed."""
    if missing := service.missing():
        print(f"{name}: skipped: needs {', '.join(missing)}: {service.install}", flush=True)
        return True
    passed = True
    try:
        with service.start(folder) as running:
            for what, check in service.checks.items():
                began = time.monotonic()
                try:
                    seen = f"passed: {check(running)}"
                except Exception:
                    seen, passed = f"FAILED: {traceback.format_exc()}", False
                print(f"{name}: {what}: {time.monotonic() - began:.0f} s, {seen}", flush=True)
    except Exception:
        print(f"{name}: does not start or stop: {traceback.format_exc()}", flush=True)
        return False
    return passed
