"""Writes and reads metrics.jsonl, a worker's training log with one JSON object per line.

Imports no torch.

It is the only channel from a worker to the runner: both the screen and the ledger are made from it.
stages/metrics_lines.py describes every kind of line. A line ends with the CRC of everything before it, which reveals
damage. Readers skip lines that are damaged, cut off or of no such kind, so that they can rely on the keys and types of
each record: a line without its CRC. Numbers that are not finite are null.
"""

import json
import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from stages.counted import counted
from stages.metrics_lines import checked_line

Record = dict[str, Any]

_CRC = ', "crc32": "'
"""The key in front of a line's CRC, which has eight hexadecimal digits."""


class MetricsWriter:
    """Appends records, each flushed as one complete line. Only rank 0 has one."""

    def __init__(self, path: Path, attempt: int) -> None:
        """Opens `path` for appending; ends a last line that a killed worker left incomplete."""
        self._attempt = attempt
        torn = path.exists() and not _ends_with_a_line(path)
        self._file: TextIO = path.open("a", encoding="utf-8")
        if torn:
            self._file.write("\n")

    def write(self, event: str, step: int, seconds: float, **values: Any) -> None:
        """Appends one record and hands it to the operating system."""
        record = {
            "event": event,
            "attempt": self._attempt,
            "step": step,
            "seconds": round(seconds, 3),
            **_finite(values),
        }
        text = json.dumps(record, allow_nan=False)
        self._file.write(f'{text[:-1]}{_CRC}{zlib.crc32(text.encode()):08x}"}}\n')
        self._file.flush()

    def sync(self) -> None:
        """Forces all records onto the disk; called before a checkpoint becomes visible."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class MetricsReader:
    """Follows a metrics.jsonl: each iteration continues where the last one stopped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.unreadable = 0
        """Number of complete lines so far that are not records."""

    def __iter__(self) -> Iterator[Record]:
        """Yields the records added since the last iteration; an incomplete last line is left for the next one."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                record = parse_line(line)
                if record is not None:
                    yield record
                else:
                    self.unreadable += 1

    def complaint(self) -> str | None:
        """A message about lines that could not be read; None if there were none."""
        if not self.unreadable:
            return None
        return f"{self._path}: {counted(self.unreadable, 'line')} could not be read"


def _finite(value: Any) -> Any:
    """`value`, with null in the place of every number in it that is not finite."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _ends_with_a_line(path: Path) -> bool:
    """Whether a file is empty or its last line is complete. Reads only the last byte."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() in (b"", b"\n")


def parse_line(line: bytes) -> Record | None:
    """The record in a line; None if the line is damaged or of no known kind."""
    body, _, crc = line.rpartition(_CRC.encode())
    text = body + b"}"
    if crc.rstrip() != b'%08x"}' % zlib.crc32(text):
        return None
    try:
        record = checked_line(line)
    except ValueError:
        return None
    del record["crc32"]
    return record


def read_metrics(path: Path) -> list[Record]:
    """Every record of `path`, oldest first; empty if there is no such file."""
    return list(MetricsReader(path))


def read_events(path: Path, *events: str) -> list[Record]:
    """The records of `path` with one of these events, oldest first. Does not parse the other lines, which is fast."""
    if not path.exists():
        return []
    begins = tuple(f'{{"event": "{event}",'.encode() for event in events)
    with path.open("rb") as file:
        records = (parse_line(line) for line in file if line.startswith(begins) and line.endswith(b"\n"))
        return [record for record in records if record is not None]
