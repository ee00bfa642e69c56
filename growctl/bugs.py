"""Reports unexpected exceptions: one line for the user, and a traceback file to attach to a bug report."""

import os
import platform
import shlex
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Iterator
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
    if print_traceback or os.environ.get(DEBUG_VARIABLE) == "1":
        say(trace.rstrip(), error=True)
    now = datetime.now(UTC)
    facts = {"time": now.isoformat(timespec="seconds"), "command": shlex.join(sys.argv), "growctl": growctl_version()}
    text = "".join(f"{name}: {value}\n" for name, value in (facts | {"python": platform.python_version()}).items())
    where = f"The traceback could not be written to a file; {DEBUG_VARIABLE}=1 prints it"
    for folder in _folders(runs_dir):
        with suppress(OSError):
            descriptor, path = tempfile.mkstemp(".txt", f"growctl-{now:%Y%m%dT%H%M%SZ}-", folder)
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{text}\n{trace}")
            where = f"The traceback is in {path}; please report the bug with that file"
            break
    what = textwrap.shorten(f"{type(error).__name__}: {error}", LONGEST_MESSAGE, placeholder=" ...")
    say(f"growctl: this is a bug in growctl: {what.removesuffix('.')}. {where}", error=True)


def _folders(runs_dir: Path) -> Iterator[Path]:
    """Where to write the traceback, in this order."""
    with suppress(OSError, ImportError):
        from growctl.runs_dir import RunsPaths  # imported late: another `stages` may shadow the one that it needs

        if runs_dir.is_dir():  # a missing one is not created for a bug report
            RunsPaths(runs_dir).bugs.mkdir(exist_ok=True)
            yield RunsPaths(runs_dir).bugs
    yield Path(tempfile.gettempdir())


def growctl_version() -> str:
    """The installed version of growctl."""
    try:
        return version("growctl")
    except PackageNotFoundError:
        return "not installed as a package"
