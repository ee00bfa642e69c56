"""TensorBoard: event files, one directory per stage below GROUP/RUN. Needs neither torch nor TensorFlow.

TensorBoard calls each directory a run and compares any of them. Its x axis is one whole number, so each value is
written once per axis.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from growctl.trackers.protocol import Place, Status, TrackedRun
from growctl.trackers.tables import markdown, schedule_yaml


class TensorBoard:
    """Event files of one run. A resumed run adds files to the same directories."""

    def __init__(self, run: TrackedRun, store: Path, known: str | None) -> None:
        self.id = known or f"{run.group}/{run.name}"
        self._directory = store / self.id
        self._writers: dict[str, EventFileWriter] = {}
        if not known:
            self._write("", text_pb("schedule", f"```yaml\n{schedule_yaml(run)}```"), 0)

    def log(self, place: Place, values: Mapping[str, float]) -> None:
        """Writes each value once per axis."""
        for prefix, x in place.on_axes().items():
            for name, value in values.items():
                self._write(_folder(place), scalar_pb(prefix + name, value), x)

    def mark(self, place: Place, event: str, text: str, values: Mapping[str, float]) -> None:
        """Writes the event as a text, and its values."""
        self._write(_folder(place), text_pb(event, text), place.step)
        self.log(place, {f"{event}/{name}": value for name, value in values.items()})

    def flush(self) -> None:
        """Hands the event files to the operating system."""
        for writer in self._writers.values():
            writer.flush()

    def finish(self, status: Status, table: list[dict[str, str]]) -> None:
        """Writes the report's table as a text."""
        self._write("", text_pb("report", f"{status}\n\n{markdown(table)}"), 0)
        for writer in self._writers.values():
            writer.close()

    def _write(self, folder: str, summary: Summary, x: int) -> None:
        if folder not in self._writers:
            self._writers[folder] = EventFileWriter(str(self._directory / folder))
        self._writers[folder].add_event(Event(summary=summary, step=x, wall_time=time.time()))


def _folder(place: Place) -> str:
    """The directory of a stage, or of a release, beside its stage's."""
    return f"{place.index}-{place.stage.replace('/', '-')}"
