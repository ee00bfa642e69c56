"""A check of `growctl doctor`: its result, how it runs so that its errors do not stop the others, and how it is shown.

Imports neither stages nor model: other packages of these names may hide growctl's, which the check of imports finds.
"""

import errno
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from growctl.text.section import Cell, Column, Paragraph, Section, Table

Level = Literal["ok", "warning", "failed"]

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""No space is left, or none of the user's quota."""
MORE_SPACE = "free some space, or store runs elsewhere with --runs-dir or GROWCTL_RUNS_DIR"

COMMAND_SECONDS = 60.0
"""Timeout of a command that a check runs; most take a tenth of a second."""

ROOT = Path(__file__).resolve().parent.parent.parent
"""The folder that contains growctl's packages, both in a checkout and installed."""

PACKAGES = {"growctl": "cli", "stages": "train", "model": "config"}
"""The packages that workers import, and a module of each."""


@dataclass(frozen=True)
class Check:
    """The result of a check."""

    name: str
    level: Level
    what: str
    """What was found, in words."""
    fix: str | None = None
    """How to fix it; set unless the level is `ok`."""


@dataclass(frozen=True)
class DoctorDocument:
    """The checks of a machine, as `growctl doctor` prints them."""

    ok: bool
    """Whether no check failed. Warnings do not count."""
    checks: tuple[Check, ...]


class Problem(Exception):
    """What a check has found wrong."""

    def __init__(self, what: str, fix: str, level: Level = "failed") -> None:
        super().__init__(what)
        self.fix = fix
        self.level = level


class CommandFailed(Exception):
    """A command failed; the message is the line with the reason, in the form that Python and compilers print it."""


def carried_out(name: str, check: Callable[[], str]) -> Check:
    """The result of `check`, which returns what is fine and raises Problem; any other error fails the check."""
    try:
        return Check(name, "ok", check())
    except Problem as problem:
        return Check(name, problem.level, str(problem), problem.fix)
    except Exception as error:  # any error on a broken machine is a result and must not end the doctor
        is_full = isinstance(error, OSError) and error.errno in DISK_FULL
        fix = MORE_SPACE if is_full else "fix the earlier failures first, if any"
        return Check(name, "failed", f"{type(error).__name__}: {error}", fix)


def run_command(
    command: Sequence[str], environment: Mapping[str, str], text: str = "", seconds: float = COMMAND_SECONDS
) -> str:
    """The output of a command that reads `text`. Raises CommandFailed, OSError and subprocess.TimeoutExpired."""
    result = subprocess.run(
        command, env=environment, input=text, capture_output=True, text=True, timeout=seconds, check=False
    )
    if result.returncode:
        lines = [line.strip() for line in (result.stderr or result.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        raise CommandFailed((errors or lines or [f"exit code {result.returncode}"])[-1])
    return result.stdout


_PLACES = """
import importlib, importlib.util, json, os
places = {}
for name, module in %r.items():
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin is None:
        # A folder without __init__.py: it hides nothing, unless there is nothing else.
        importlib.import_module(name)
        inner = importlib.util.find_spec(f"{name}.{module}")
        places[name] = os.path.dirname(inner.origin) if inner else list(spec.submodule_search_locations)[0]
    else:
        places[name] = spec and (spec.submodule_search_locations or [spec.origin])[0]
print(json.dumps(places))
"""
"""Prints where Python would import each package from, without running the packages' code."""


def check_imports() -> str:
    """Checks where workers started here would import growctl's packages from, and where a plain `python -m` would."""
    worker, others = _places(os.environ | {"PYTHONSAFEPATH": "1"})
    if others:
        fix = "move or rename it, or remove its folder from PYTHONPATH; if a package installed it, uninstall that"
        raise Problem(f"workers would import {others} instead of growctl's own", fix)
    if missing := [name for name, place in worker.items() if place is None]:
        fix = f"install growctl into this Python: pip install -e {ROOT}"
        raise Problem(f"workers would not find {', '.join(missing)}", fix)
    _, others = _places(os.environ)
    if others:
        fix = "use the growctl command, which together with its workers ignores this directory; or move or rename it"
        raise Problem(f"`python -m` in this directory would import {others} instead of growctl's own", fix, "warning")
    return f"workers import {', '.join(worker)} from {ROOT}"


def _places(environment: Mapping[str, str]) -> tuple[dict[str, str | None], str]:
    """Where a Python with `environment` would import each package from, and those places that are not growctl's."""
    places = json.loads(run_command([sys.executable, "-c", _PLACES % PACKAGES], environment))
    others = [place for name, place in places.items() if place and os.path.realpath(place) != str(ROOT / name)]
    return places, ", ".join(others)


def doctor_section(document: DoctorDocument) -> Section:
    """The checks as a table, with each fix below what was found, and how many are ok, warnings and failures."""
    rows = [
        (Cell(check.name), Cell(check.level), Cell(f"{check.what}\nfix: {check.fix}" if check.fix else check.what))
        for check in document.checks
    ]
    columns = [Column("check", is_number=False), Column("level", is_number=False), Column("what", is_number=False)]
    levels = Counter(check.level for check in document.checks)
    summary = f"ok: {levels['ok']}, warnings: {levels['warning']}, failed: {levels['failed']}"
    if levels["failed"] == len(document.checks):
        summary += ". Fix this first; growctl doctor can then run the other checks."
    return Section("doctor", "This machine", (Table.of("checks", columns, rows), Paragraph(summary, "strong")))
