"""Trackers that note what they are given, raise or hang. Imports little: each starts in a process of its own."""

import json
import time
from pathlib import Path
from typing import Any

from growctl.trackers.protocol import Place, Status, TrackedRun


class Noting:
    """A tracker that notes in a file what it is given."""

    def __init__(self, run: TrackedRun, store: Path, known: str | None) -> None:
        self.id = known or "the-first"
        self._file = store / "calls.jsonl"
        self._note("run", run.name, run.group, run.kind, known)

    def _note(self, *call: Any) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(call) + "\n")

    def log(self, place: Place, values: dict[str, float]) -> None:
        self._note("log", place.stage, place.step, place.tokens, place.flops, values)

    def mark(self, place: Place, event: str, text: str, values: dict[str, float]) -> None:
        self._note("mark", place.stage, place.step, event, text, values)

    def flush(self) -> None:
        pass

    def finish(self, status: Status, table: list[dict[str, str]]) -> None:
        self._note("finish", status, len(table))


class Raising(Noting):
    """A tracker that raises at its first value."""

    def log(self, place: Place, values: dict[str, float]) -> None:
        raise ConnectionError("the server\x1b[2J is gone")


class Hanging(Noting):
    """A tracker that never returns from its first value."""

    def log(self, place: Place, values: dict[str, float]) -> None:
        while True:
            time.sleep(60)
