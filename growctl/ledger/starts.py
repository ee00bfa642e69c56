"""Records each start of a ladder: when it was, the command, and the software. The report shows it."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

from growctl.runs_dir import RunPaths

PACKAGES = ("growctl", "torch", "deepspeed")
"""The packages whose versions are recorded, besides Python's own."""


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
    start = RunStart(datetime.now(UTC).isoformat(timespec="seconds"), tuple(command), _software())
    with run.starts.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(start)) + "\n")


def read_starts(run: RunPaths) -> list[RunStart]:
    """The starts of a ladder, oldest first; without lines that are damaged, empty without the file."""
    try:
        lines = run.starts.read_bytes().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [start for line in lines if (start := _start(line))]


def _start(line: bytes) -> RunStart | None:
    try:
        match json.loads(line):
            case {"at": str(at), "command": [*command], "software": {**software}}:
                return RunStart(
                    at, tuple(map(str, command)), {str(name): str(value) for name, value in software.items()}
                )
    except (ValueError, RecursionError):
        pass
    return None


def _software() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
