"""The files of JSON lines beside a ledger: scores.jsonl of a stage, and the starts of a ladder."""

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from growctl.ledger.books import utc_now
from growctl.runs_dir import RunPaths

Line = TypeVar("Line")

PACKAGES = ("growctl", "torch", "deepspeed")
"""The packages whose versions a start records, besides Python's own."""


@dataclass(frozen=True)
class RunStart:
    """One start of a ladder: its first, or one that resumed it."""

    at: str
    """ISO 8601, in UTC."""
    command: tuple[str, ...]
    """The command that does the same, for this ladder alone if it was started as one of a set."""
    software: dict[str, str]
    """Versions by name; without packages that are not installed."""


def record_start(run: RunPaths, command: Sequence[str]) -> None:
    """Appends a start by `command`, now and with the installed software, to the file in the ladder's directory."""
    software = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            software[package] = version(package)
    append_lines(run.starts, [RunStart(utc_now(), tuple(command), software)])


def append_lines(path: Path, records: Sequence[Any]) -> None:
    """Appends a line for each record and syncs them to disk. Ends a line that a crash cut off."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")
        file.writelines(TypeAdapter(type(record)).dump_json(record) + b"\n" for record in records)
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path, kind: type[Line]) -> list[Line]:
    """The records in the file `path`, oldest first; none if it is missing. Skips a line that was cut off by a crash."""
    adapter, records = TypeAdapter(kind), []
    with suppress(FileNotFoundError, NotADirectoryError):
        for text in path.read_bytes().splitlines():
            with suppress(ValidationError):
                records.append(adapter.validate_json(text))
    return records
