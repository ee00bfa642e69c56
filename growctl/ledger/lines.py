"""The files of JSON lines beside a ledger: scores.jsonl of a stage, and the starts of a ladder."""

import os
import platform
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from growctl.ledger.entries import ScoreEntry
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
    start = RunStart(datetime.now(UTC).isoformat(timespec="seconds"), tuple(command), software)
    _append(run.starts, RunStart, [start])


def read_starts(run: RunPaths) -> list[RunStart]:
    """The starts of a ladder, oldest first; without lines that are damaged, empty without the file."""
    return _read(run.starts, RunStart)


def append_scores(path: Path, scores: Iterable[ScoreEntry]) -> None:
    """Appends a line for each score to the file `path`, and syncs it to disk."""
    _append(path, ScoreEntry, scores)


def read_scores(path: Path) -> list[ScoreEntry]:
    """The scores in the file `path`, oldest first; none if it is missing. Skips a line that was cut off by a crash."""
    return _read(path, ScoreEntry)


def _append(path: Path, line: type[Line], records: Iterable[Line]) -> None:
    """Appends a line for each record and syncs them to disk. Ends a line that a crash cut off."""
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")
        file.writelines(TypeAdapter(line).dump_json(record) + b"\n" for record in records)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, line: type[Line]) -> list[Line]:
    adapter, records = TypeAdapter(line), []
    with suppress(FileNotFoundError, NotADirectoryError):
        for text in path.read_bytes().splitlines():
            with suppress(ValidationError):
                records.append(adapter.validate_json(text))
    return records
