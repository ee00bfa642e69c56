"""What the script knows of a service, and how it runs the service's checks.

A module of this package offers a service as `SERVICE`. Everything runs in a network namespace that has only its
loopback device, and in a process namespace that ends with the script (namespaces.py): services may use any port, and
no process outlives the script.
"""

import importlib.util
import os
import shutil
import textwrap
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

PROGRAM_FOLDERS = ("/usr/sbin", "/sbin")
"""Where Debian installs daemons; not on every user's PATH."""

MOST_CHARACTERS = 300
"""Of a failure's message, in the table; all of it is in the file failures.txt."""

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Service:
    """A service, and the checks that run on it."""

    name: str
    programs: tuple[str, ...]
    """The programs that it needs, looked for on PATH and in PROGRAM_FOLDERS."""

    modules: tuple[str, ...]
    """The Python modules that it needs."""

    install: str
    """The command that installs both."""

    version: Callable[[], str]
    """Returns the names and versions of its programs."""

    start: Callable[[Path], AbstractContextManager[Any]]
    """Starts the service with all its files in a folder, yields what the checks need, and stops the service."""

    checks: tuple[tuple[str, Callable[[Any], str]], ...]
    """Each check's name and function. It returns one short line of what was seen, or raises AssertionError."""

    def missing(self) -> list[str]:
        """The programs and modules that this machine lacks."""
        programs = [name for name in self.programs if shutil.which(name, path=search_path()) is None]
        return programs + [f"the module {name}" for name in self.modules if importlib.util.find_spec(name) is None]


@dataclass(frozen=True)
class Result:
    """What came of one check."""

    service: str
    version: str
    check: str
    outcome: Outcome
    seen: str
    """What the check saw, why it failed, or why it was skipped."""

    seconds: float = 0.0


def search_path() -> str:
    """PATH with the folders of daemons."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *PROGRAM_FOLDERS])


def skipped(service: Service, reason: str) -> list[Result]:
    """The results of every check of a service that cannot run here."""
    say(f"{service.name}: skipped: {reason}")
    return [Result(service.name, "-", name, "skipped", reason) for name, _ in service.checks]


def run_checks(service: Service, folder: Path) -> list[Result]:
    """Starts a service in `folder`, runs every check, and stops the service. Prints progress."""
    if missing := service.missing():
        return skipped(service, f"needs {', '.join(missing)}: {service.install}")
    version = service.version()
    say(f"{service.name}: starting {version} in {folder}")
    manager = service.start(folder)
    running: list[Any] = []

    def checked(name: str, check: Callable[[], str]) -> Result:
        return _checked(service.name, version, name, check, folder)

    def starts() -> str:
        running.append(manager.__enter__())
        return "ready"

    def stops() -> str:
        manager.__exit__(None, None, None)
        return "stopped"

    first = checked("starts", starts)
    if first.outcome == "failed":
        return [first]
    results = [checked(name, partial(check, running[0])) for name, check in service.checks]
    last = checked("stops", stops)
    return [*results, last] if last.outcome == "failed" else results


def _checked(service: str, version: str, name: str, check: Callable[[], str], folder: Path) -> Result:
    """The result of one check. The traceback of a failure goes into `folder`."""
    say(f"{service}: {name} ...")
    began = time.monotonic()
    outcome: Outcome = "passed"
    try:
        seen = check()
    except Exception as error:
        outcome = "failed"
        seen = textwrap.shorten(str(error) or type(error).__name__, MOST_CHARACTERS, placeholder=" ...")
        with (folder / "failures.txt").open("a") as file:
            file.write(f"{name}\n{traceback.format_exc()}\n")
    result = Result(service, version, name, outcome, seen, time.monotonic() - began)
    say(f"{service}: {name}: {outcome} after {result.seconds:.0f} s: {seen}")
    return result


def say(text: str) -> None:
    """Prints a line of progress."""
    print(text, flush=True)
