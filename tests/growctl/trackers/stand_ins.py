"""Trackers that note what they are given, raise or hang. Imports little: each starts in a process of its own."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from growctl.trackers.adapters import Status, TrackedPoint, TrackedRun


class Noting:
    """A tracker that notes in a file what it is given."""

    def __init__(self, run: TrackedRun, store: Path, known: str | None) -> None:
        self.id = known or "the-first"
        self._file = store / "calls.jsonl"
        self._note("run", run.name, run.group, run.kind, known)

    def _note(self, *call: Any) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps(call) + "\n")

    def log(self, points: Sequence[TrackedPoint]) -> None:
        for point in points:
            self._note("log", point.stage, point.step, point.tokens, point.flops, point.values, point.row)

    def finish(self, status: Status) -> None:
        self._note("finish", status)


class Raising(Noting):
    def log(self, points: Sequence[TrackedPoint]) -> None:
        raise ConnectionError("the server\x1b[2J is gone")
