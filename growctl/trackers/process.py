"""The process of one tracker: reads a run's records from its standard input and hands them to the tracker.

A message is a line of JSON: first the run, then batches of records, at last how the run ended. The input ends without
the last one if growctl was killed.
"""

import csv
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from growctl.trackers.protocol import TrackedRun, Tracker
from growctl.trackers.records import Part, track, track_growth
from growctl.whole_file import replace_file

ORPHAN_SECONDS = 60
"""How long the process may live on after growctl was killed, to write what it has."""


class Memory:
    """What the run's directory remembers of a tracker: its id, and how many records of each stage it has."""

    def __init__(self, path: Path) -> None:
        """A file that is missing or damaged counts as empty: the tracker then begins a new run."""
        self._path = path
        try:
            known = json.loads(path.read_bytes())
            self.id: str | None = str(known["id"])
            self.records = {str(stage): int(number) for stage, number in known["records"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self.id, self.records = None, {}

    def write(self) -> None:
        """Replaces the file as a whole."""
        replace_file(self._path, (json.dumps({"id": self.id, "records": self.records}, indent=1) + "\n").encode())


def follow(tracker: Tracker, memory: Memory, message: dict[str, Any]) -> None:
    """Hands the records of one message to the tracker."""
    part, first, records = Part(**message["part"]), message["first"], message["records"]
    if first == 0:
        track_growth(tracker, part)
    for record in records:
        track(tracker, part, record)
    tracker.flush()
    memory.records[part.stage] = first + len(records)
    memory.write()


def serve(messages: Iterable[bytes], target: str, store: str, memory_file: str) -> None:
    """Runs the tracker `target`, a module:Class, until the messages end. Raises what it raises."""
    lines = iter(messages)
    memory = Memory(Path(memory_file))
    run = TrackedRun(**json.loads(next(lines)))
    module, _, name = target.partition(":")
    Path(store).mkdir(parents=True, exist_ok=True)
    tracker: Tracker = getattr(import_module(module), name)(run, Path(store), memory.id)
    memory.id = tracker.id
    memory.write()
    for line in lines:
        message = json.loads(line)
        if "status" in message:
            tracker.finish(message["status"], list(csv.DictReader(io.StringIO(message["table"]))))
            return
        follow(tracker, memory, message)
    tracker.finish("interrupted", [])


def _die_with_parent(parent: int) -> None:
    """Ends this process some time after growctl is gone, whatever the tracker does then."""
    while os.getppid() == parent:
        time.sleep(1.0)
    signal.alarm(ORPHAN_SECONDS)  # nothing handles it, so it ends the process even inside a call that never returns


if __name__ == "__main__":
    os.nice(10)  # the workers come first
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), daemon=True).start()
    serve(sys.stdin.buffer, *sys.argv[1:])
