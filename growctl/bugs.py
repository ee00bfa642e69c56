"""Exceptions that nobody foresaw: one line for the user, and a file with the traceback to report the bug with."""

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

FOLDER = ".bugs"
"""Of the files with tracebacks, below the runs directory; no run's name starts with a dot."""

DEBUG_VARIABLE = "GROWCTL_DEBUG"
"""1: tracebacks are printed too."""

LONGEST_MESSAGE = 300
"""Characters of the exception that stand in the line for the user."""


def report_bug(error: Exception, runs_dir: Path, print_traceback: bool = False) -> None:
    """Says on standard error that `error` is a bug, and where its traceback is.

    That is a file below `runs_dir`, or in the temporary directory where that cannot be written. With
    `print_traceback`, or GROWCTL_DEBUG=1, the traceback is printed too.
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
    say(f"growctl: this is a bug in growctl: {what}. {where}", error=True)


def _write(trace: str, runs_dir: Path) -> Path | None:
    """The new file that `trace` is in, with what it takes to understand it; None where there is no place for one."""
    now = datetime.now(UTC)
    text = (
        f"time: {now.isoformat(timespec='seconds')}\n"
        f"command: {shlex.join(sys.argv)}\n"
        f"growctl: {_growctl_version()}\n"
        f"python: {platform.python_version()}\n\n{trace}"
    )
    with suppress(OSError):
        if runs_dir.is_dir():  # none is made for this
            (runs_dir / FOLDER).mkdir(exist_ok=True)
            return _new_file(runs_dir / FOLDER, now, text)
    with suppress(OSError):
        return _new_file(Path(tempfile.gettempdir()), now, text)
    return None


def _new_file(folder: Path, now: datetime, text: str) -> Path:
    descriptor, path = tempfile.mkstemp(".txt", f"growctl-{now:%Y%m%dT%H%M%SZ}-", folder)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return Path(path)


def _growctl_version() -> str:
    try:
        return version("growctl")
    except PackageNotFoundError:
        return "not installed as a package"
