"""A check of `growctl doctor`: its result, how it runs so that its errors do not stop the others, and how it is shown.

Imports neither stages nor model: other packages of these names may hide growctl's, which the check of imports finds.
"""

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from growctl.text.section import Facts, Paragraph, Section

Level = Literal["ok", "warning", "failed"]

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""No space is left, or none of the user's quota."""
MORE_SPACE = "free some space, or store runs elsewhere with --runs-dir or GROWCTL_RUNS_DIR"

ROOT = Path(__file__).resolve().parent.parent.parent
"""The folder that contains growctl's packages, both in a checkout and installed."""

PACKAGES = ("growctl", "stages", "model")


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


def check_imports() -> str:
    """Checks that growctl's packages come from one folder, and not from other packages of the same names."""
    specs = {name: find_spec(name) for name in PACKAGES}
    others = [
        spec.origin
        for name, spec in specs.items()
        if spec and spec.origin and Path(spec.origin).resolve().parent != ROOT / name
    ]
    if others:
        fix = "move or rename it, or remove its folder from PYTHONPATH; if a package installed it, uninstall that"
        raise Problem(f"Python would import {', '.join(others)} instead of growctl's own", fix)
    return f"{', '.join(PACKAGES)} come from {ROOT}"


def doctor_section(document: DoctorDocument) -> Section:
    """The checks, with each fix below what was found, and how many are ok, warnings and failures."""
    rows = [
        (check.name, f"{check.level}: {check.what}" + (f"\nfix: {check.fix}" if check.fix else ""))
        for check in document.checks
    ]
    levels = Counter(check.level for check in document.checks)
    summary = f"ok: {levels['ok']}, warnings: {levels['warning']}, failed: {levels['failed']}"
    if levels["failed"] == len(document.checks):
        summary += ". Fix this first; growctl doctor can then run the other checks."
    return Section("doctor", "This machine", (Facts(tuple(rows)), Paragraph(summary, "strong")))
