"""The history of a stage: reads metrics.jsonl from its beginning, then follows new records."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from growctl.ledger.books import LANDMARKS
from stages.metrics import MetricsReader, Record, read_events

PIECE = 10_000
"""The most records to yield at once, so that a long file is never in memory as a whole."""


class StageHistory:
    """A stage's metrics.jsonl, read once and shared by the runner, its attempts and the ledger."""

    def __init__(self, metrics: Path) -> None:
        """Reads nothing yet."""
        self._metrics = metrics
        self._reader = MetricsReader(metrics)
        self.last_attempt = 0
        """The highest attempt number in the records read so far; 0 before the first."""

        self.begun = False
        """Whether the workers of any attempt have written their `start` record."""

        self.interrupted = False
        """Whether an exception, such as a signal's, has interrupted a read, so that its records may be lost."""

    def read(self) -> Iterator[list[Record]]:
        """Yields the records added since the last call, oldest first, in pieces; yields nothing if there are none.

        An interrupted read is the last one, because the next would begin after the lost records: a new history reads
        them again.
        """
        if self.interrupted:
            return
        self.interrupted = True  # until the caller has taken the last piece
        records = iter(self._reader)
        while piece := list(islice(records, PIECE)):
            self.last_attempt = max(self.last_attempt, *(record["attempt"] for record in piece))
            self.begun = self.begun or any(record["event"] == "start" for record in piece)
            yield piece
        self.interrupted = False

    def read_to_the_end(self) -> "StageHistory":
        """Reads all remaining records, to update `last_attempt` and `begun`, and returns this history."""
        for _ in self.read():
            pass
        return self

    def landmarks(self) -> list[Record]:
        """The records of the whole file so far that the books must know before they book its first piece."""
        return read_events(self._metrics, *LANDMARKS)

    def complaint(self) -> str | None:
        """A message about the lines that could not be read; None if there were none."""
        return self._reader.complaint()
