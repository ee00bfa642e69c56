"""A stage's past: what its workers have said in metrics.jsonl, read once from the top and then followed."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from stages.metrics import MetricsReader, Record

PIECE = 10_000
"""Records given at a time at most, so that a long file is never in memory as a whole."""


class StageHistory:
    """The one reading of a stage's metrics.jsonl that the runner, its attempts and the ledger share."""

    def __init__(self, metrics: Path) -> None:
        """Reads nothing yet."""
        self._reader = MetricsReader(metrics)
        self.last_attempt = 0
        """The highest attempt of which a record was read; 0 before the first."""

        self.begun = False
        """Whether any attempt's workers got as far as their `start`."""

    def read(self) -> Iterator[list[Record]]:
        """The records that were added since the last reading, oldest first, in pieces; nothing where there are none."""
        records = iter(self._reader)
        while piece := list(islice(records, PIECE)):
            self.last_attempt = max(self.last_attempt, *(record["attempt"] for record in piece))
            self.begun = self.begun or any(record["event"] == "start" for record in piece)
            yield piece

    def read_to_the_end(self) -> "StageHistory":
        """Reads on, for what the history itself knows then."""
        for _ in self.read():
            pass
        return self

    def complaint(self) -> str | None:
        """What is to be said of lines that could not be read; None where there were none."""
        return self._reader.complaint()
