"""Reports unexpected exceptions: one line for the user, and a traceback file to attach to a bug report."""

import os
import platform
import shlex
import sys
import tempfile
import textwrap
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from growctl.text.escaping import say

DEBUG_VARIABLE = "GROWCTL_DEBUG"
"""Set it to 1 to print tracebacks too."""

LONGEST_MESSAGE = 300
"""The most characters of the exception in the line for the user."""


def report_bug(error: Exception, runs_dir: Path, print_traceback: bool = False) -> None:
    """Reports on standard error that `error` is a bug, with the path of its traceback.

    The traceback is written to a file below `runs_dir`, or else in the temporary directory. With `print_traceback` or
    GROWCTL_DEBUG=1, it is printed too.
    """
    trace = "".join(traceback.format_exception(error))
    written = _write(trace, runs_dir)
    if print_traceback or os.environ.get(DEBUG_VARIABLE) == "1":
        say(trace.rstrip(), error=True)
    what = textwrap.shorten(f"{type(error).__name__}: {error}", LONGEST_MESSAGE, placeholder=" ...")
    if written:
        where = f"The traceback is in {written}; please report the bug with that file"
    else:
        where = f"The traceback could not be written to a file; {DEBUG_VARIABLE}=1 prints it"
    say(f"growctl: this is a bug in growctl: {what.removesuffix('.')}. {where}", error=True)


def _write(trace: str, runs_dir: Path) -> Path | None:
    """Writes `trace` with the command and versions to a new file; returns its path, or None if no place is writable."""
    now = datetime.now(UTC)
    text = (
        f"time: {now.isoformat(timespec='seconds')}\n"
        f"command: {shlex.join(sys.argv)}\n"
        f"growctl: {growctl_version()}\n"
        f"python: {platform.python_version()}\n\n{trace}"
    )
    with suppress(OSError, ImportError):
        from growctl.runs_dir import RunsPaths  # imported late: another `stages` may shadow the one that it needs

        if runs_dir.is_dir():  # a missing one is not created for a bug report
            folder = RunsPaths(runs_dir).bugs
            folder.mkdir(exist_ok=True)
            return _new_file(folder, now, text)
    with suppress(OSError):
        return _new_file(Path(tempfile.gettempdir()), now, text)
    return None


def _new_file(folder: Path, now: datetime, text: str) -> Path:
    descriptor, path = tempfile.mkstemp(".txt", f"growctl-{now:%Y%m%dT%H%M%SZ}-", folder)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return Path(path)


def growctl_version() -> str:
    """The installed version of growctl."""
    try:
        return version("growctl")
    except PackageNotFoundError:
        return "not installed as a package"
