"""Writes and reads metrics.jsonl, a worker's training log with one JSON object per line.

Imports no torch.

It is the only channel from a worker to the runner: both the screen and the ledger are made from it. Every line has
`event`, `attempt` (1 for the first start of the stage), `step` (optimizer steps done in the stage) and `seconds`
(since this attempt was launched, start-up included). The other keys, by event:

- start: device, num_devices, precision, zero_stage, resumed_from (step, or null)
- train: loss (nats per token, over the updates made since the last such line; null if there were none),
  learning_rate, gradient_norm (null if the last update was rejected), tokens_seen (in the stage), tokens_per_second
- anomaly: a rejected update: kind (`non_finite`, `spike`), value (its loss; null if that is not finite), threshold (the
  limit that a spike's loss exceeded, else null), action (`skip`, `rollback`, `stop`), first_step and num_steps (the
  data to skip: that of `num_steps` updates from update `first_step` on, counted from 0; stages/train/skipped_data.py).
  A rollback is the last record of its attempt.
- evaluation: point (at step 0 `after_growth`, or `start` if the model was not grown; later `interval` and `final`),
  loss (nats per token), perplexity, bits_per_byte, num_tokens (validation tokens), precision
- trigger: slope (nats the loss fell per FLOP; null until there are enough evaluations), threshold, fired
- checkpoint: path (name within the stage directory)
- saved: path; the workers were asked to save and exit, and have saved
- reused: run (the name of the run that paid for the steps), checkpoint (the path it was taken from), device,
  num_devices, precision, resumed_from (the step up to which this run has trained itself), device_seconds (what the
  steps since `resumed_from`, or since the last `reused` of this attempt, cost that run). The runner writes it, in an
  attempt of its own, when it takes over a checkpoint of another run; evaluations of that run follow.
- end: no keys; the stage is done, and `final/` only needs to be renamed into place

A line ends with the CRC of everything before it, which reveals damage. Readers skip lines that are damaged, cut off or
not records, so that they can rely on the keys and types of each record. Measured values may be NaN or infinite.
"""

import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from stages.counted import counted

Record = dict[str, Any]

MOST = 10**11
"""Larger than any number of steps or seconds: this many steps of a millisecond take three years."""

_CRC = ', "crc32": "'
"""The key in front of a line's CRC, which has eight hexadecimal digits."""


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= MOST)


def _text(value: Any) -> bool:
    return type(value) is str and value.isprintable()


def _speed(value: Any) -> bool:
    return value == 0.0 or (_number(value) and 1e-9 <= value <= 1e15)


def _or_null(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


_HEAD: dict[str, Callable[[Any], bool]] = {
    "event": _text,
    "attempt": lambda value: _count(value) and value > 0,
    "step": _count,
    "seconds": lambda value: _number(value) and 0.0 <= value <= MOST,
}
_KEYS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "start": {
        "device": _text,
        "num_devices": lambda value: _count(value) and value > 0,
        "precision": _text,
        "zero_stage": _count,
        "resumed_from": _or_null(_count),
    },
    "train": {"loss": _or_null(_number), "tokens_per_second": _speed},
    "evaluation": {
        "point": _text,
        "loss": _number,
        "perplexity": _number,
        "bits_per_byte": _number,
        "num_tokens": _count,
        "precision": _text,
    },
    "trigger": {"slope": _or_null(_number), "threshold": _number, "fired": lambda value: type(value) is bool},
    "checkpoint": {"path": _text},
    "saved": {"path": _text},
    "anomaly": {
        "kind": lambda value: value in ("non_finite", "spike"),
        "value": _or_null(_number),
        "threshold": _or_null(_number),
        "action": lambda value: value in ("skip", "rollback", "stop"),
        "first_step": _or_null(_count),
        "num_steps": _or_null(_count),
    },
    "reused": {
        "run": _text,
        "checkpoint": _text,
        "device": _text,
        "num_devices": lambda value: _count(value) and value > 0,
        "precision": _text,
        "resumed_from": _count,
        "device_seconds": lambda value: _number(value) and 0.0 <= value <= MOST,
    },
    "end": {},
}
"""The keys that readers rely on, by event. For other events, only the keys in `_HEAD` are checked."""

_CHECKS = {event: tuple((_HEAD | keys).items()) for event, keys in _KEYS.items()}


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
            **values,
        }
        text = json.dumps(record)
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


def _ends_with_a_line(path: Path) -> bool:
    """Whether a file is empty or its last line is complete. Reads only the last byte."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() in (b"", b"\n")


def parse_line(line: bytes) -> Record | None:
    """The record in a line; None if the line is damaged, or lacks a key of its event."""
    body, marked, crc = line.rpartition(_CRC.encode())
    text = body + b"}"
    if not marked or crc.rstrip() != b'%08x"}' % zlib.crc32(text):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if type(record) is not dict:
        return None
    event = record.get("event")
    checks = _CHECKS.get(event, tuple(_HEAD.items())) if type(event) is str else ()
    fits = checks and all(key in record and check(record[key]) for key, check in checks)
    return record if fits and (event != "anomaly" or _whole_anomaly(record)) else None


def _whole_anomaly(record: Record) -> bool:
    """Whether a spike has its loss and threshold, and a rollback its target."""
    figures = ("value", "threshold") if record["kind"] == "spike" else ()
    place = ("first_step", "num_steps") if record["action"] == "rollback" else ()
    return all(record[key] is not None for key in (*figures, *place))


def read_metrics(path: Path) -> list[Record]:
    """Every record of `path`, oldest first; empty if there is no such file."""
    return list(MetricsReader(path))


def read_events(path: Path, *events: str) -> list[Record]:
    """The records of `path` with one of these events, oldest first. Does not parse the other lines, which is fast."""
    if not path.exists():
        return []
    begins = tuple(f'{{"event": "{event}",'.encode() for event in events)
    with path.open("rb") as file:
        found = (parse_line(line) for line in file if line.startswith(begins) and line.endswith(b"\n"))
        return [record for record in found if record is not None]
