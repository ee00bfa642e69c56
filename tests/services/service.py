"""What the script knows of a service, how it runs the service's checks, and the table of their results.

Everything runs in a network namespace that has only its loopback device, and in a process namespace that ends with the
script: services may use any port, and no process outlives the script.
"""

import importlib.util
import os
import shutil
import textwrap
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from growctl.text.formatting import duration

MOST_CHARACTERS = 300
"""Of a failure's message, in the table; all of it is in the file failures.txt."""


@dataclass(frozen=True)
class Service:
    """A service, and the checks that run on it."""

    name: str
    programs: tuple[str, ...]
    modules: tuple[str, ...]
    """The programs and Python modules that it needs."""

    install: str
    """The command that installs both."""

    version: Callable[[], str]
    """Returns the names and versions of its programs."""

    start: Callable[[Path], AbstractContextManager[Any]]
    """Starts the service with all its files in a folder, yields what the checks need, and stops the service."""

    checks: Mapping[str, Callable[[Any], str]]
    """By name. A check returns one short line of what it saw, or raises AssertionError."""

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
    outcome: Literal["passed", "failed", "skipped"]
    seen: str
    """What the check saw, why it failed, or why it was skipped."""

    seconds: float = 0.0


def search_path() -> str:
    """PATH with the folders of Debian's daemons, which are not on every user's PATH."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def skipped(service: Service, reason: str) -> list[Result]:
    """The results of every check of a service that cannot run here."""
    print(f"{service.name}: skipped: {reason}", flush=True)
    return [Result(service.name, "-", name, "skipped", reason) for name in service.checks]


def run_checks(service: Service, folder: Path) -> list[Result]:
    """Starts a service in `folder`, runs every check, and stops the service. Prints progress."""
    if missing := service.missing():
        return skipped(service, f"needs {', '.join(missing)}: {service.install}")
    checked = partial(_checked, service.name, service.version(), folder)
    results: list[Result] = []

    def all_checks() -> str:
        with service.start(folder) as running:
            results.extend(checked(name, partial(check, running)) for name, check in service.checks.items())
        return "every check was made"

    whole = checked("starts and stops", all_checks)
    return [*results, whole] if whole.outcome == "failed" else results


def _checked(service: str, version: str, folder: Path, name: str, check: Callable[[], str]) -> Result:
    """The result of one check. The traceback of a failure goes into `folder`."""
    print(f"{service}: {name} ...", flush=True)
    began = time.monotonic()
    outcome: Literal["passed", "failed"] = "passed"
    try:
        seen = check()
    except Exception as error:
        outcome = "failed"
        seen = textwrap.shorten(str(error) or type(error).__name__, MOST_CHARACTERS, placeholder=" ...")
        with (folder / "failures.txt").open("a") as file:
            file.write(f"{name}\n{traceback.format_exc()}\n")
    result = Result(service, version, name, outcome, seen, time.monotonic() - began)
    print(f"{service}: {name}: {outcome} after {result.seconds:.0f} s: {seen}", flush=True)
    return result


def markdown(results: Sequence[Result]) -> str:
    """The versions and a row for each check, as docs/clusters.md shows them."""
    versions = dict.fromkeys(f"{result.service}: {result.version}." for result in results if result.version != "-")
    lines = [*versions, "", "| service | check | result | time |", "|---|---|---|---|"]
    for result in results:
        seen = result.seen if result.outcome == "passed" else f"{result.outcome}: {result.seen}"
        cells = (result.service, result.check, seen, duration(result.seconds))
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines)
