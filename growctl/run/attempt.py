"""One attempt at a stage: starts its workers, follows their records to the end, and reports the outcome."""

import signal
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from growctl.launch.machines import Launch
from growctl.launch.worker_logs import failure_reason, logged_reason, slurm_failure, unreached_machine
from growctl.launch.workers import Workers
from growctl.run import signals
from growctl.text.formatting import duration
from stages.metrics import MetricsReader, Record
from stages.process.watchdog import Stalls, remove_empty_stacks
from stages.spec import TrainSpec
from stages.stage_dir import StagePaths

LONGEST_PAUSE = 60.0
"""The longest pause before a restart, in seconds. Pauses are 1, 10, 60, 60, ...: problems of a machine often pass."""

POLL_SECONDS = 0.2
STALL_POLL_SECONDS = 3.0
SETTLE_SECONDS = 3.0
"""Seconds between the first rank's stack trace and the end of the workers, for the other ranks to write theirs."""


PIECE = 10_000
"""The most records to read at once, so that a long file is never in memory as a whole."""


class StageHistory:
    """A stage's metrics.jsonl, read once and shared by the runner, its attempts and the ledger."""

    def __init__(self, metrics: Path) -> None:
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

    def complaint(self) -> str | None:
        """A message about the lines that could not be read; None if there were none."""
        return self._reader.complaint()


class Outcome(NamedTuple):
    """The outcome of an attempt."""

    kind: Literal["ended", "failed", "crashed", "hung"]
    """ended: the workers exited with code 0; the stage may still be incomplete. failed: a worker reported an error that
    another attempt would repeat. crashed, hung: another attempt may succeed."""

    reason: str = ""


class Attempt:
    """One attempt at a stage."""

    def __init__(
        self,
        spec: TrainSpec,
        launch: Launch,
        history: StageHistory,
        grace: float,
        on_records: Callable[[list[Record]], None],
        tell: Callable[[str], None],
    ) -> None:
        """`history`: the stage's records, read up to now; the attempt reads on. `on_records` gets each batch of new
        records. `grace`: seconds that the workers have to save after a stop signal.
        """
        self._spec, self._launch, self._grace = spec, launch, grace
        self._on_records, self._tell = on_records, tell
        stage = StagePaths(Path(spec.directory))
        self._log, self._stacks = stage.log, stage.stacks
        self._history = history
        self._stalls = Stalls(stage.directory, spec.attempt, spec.hang_seconds)
        self._last_look = time.monotonic()
        self._log_start = self._log_read = 0
        self._begun = self._saved = False

    def run(self) -> Outcome:
        """Starts the workers, follows them until they exit and returns the outcome.

        On a stop signal, the attempt asks the workers to save and exit. It kills them after the grace period, or at
        once on a second signal. Raises signals.Stopped after they have exited, also if the cluster signalled them
        directly.
        """
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        try:
            with signals.noted() as stop, Workers(self._launch, self._log) as workers:
                hung = self._follow(workers, stop)
                if hung:
                    workers.kill()
        finally:
            where = self._stalls.described()
            remove_empty_stacks(self._stacks)
            self._read()
        if self._saved:  # the cluster signalled the workers directly
            raise signals.Stopped(signal.SIGTERM)
        if hung:
            return Outcome("hung", f"no rank did anything for {duration(self._spec.hang_seconds)}: {where}")
        if workers.wait() == 0:
            return Outcome("ended")
        reason = failure_reason(self._log, self._log_start, workers.wait())
        may_pass = self._history.begun or slurm_failure(self._log, self._log_start)
        is_reported = logged_reason(self._log, self._log_start) is not None
        return Outcome("crashed" if may_pass and not is_reported else "failed", reason)

    def _follow(self, workers: Workers, stop: signals.Note) -> bool:
        """Follows the workers until they exit or must be killed. Returns True if they hang."""
        deadline: float | None = None
        while True:
            running = workers.running()
            self._read()
            if not running:
                return False
            if stop.number is not None and deadline is None:
                if not self._begun:
                    return False  # there is nothing to save yet
                deadline = time.monotonic() + self._grace
                workers.ask_to_save()
                self._tell("stopping: the workers save first; send the signal again to stop at once")
            if deadline is not None and time.monotonic() >= deadline:
                self._tell(f"the workers have not saved within {duration(self._grace)}; stopping them")
                return False
            if deadline is None and time.monotonic() - self._last_look >= STALL_POLL_SECONDS:
                self._last_look = time.monotonic()
                if self._stalls.noticed():
                    time.sleep(SETTLE_SECONDS)
                    return True
                if self._missing_machine():
                    return False
            time.sleep(POLL_SECONDS)

    def _read(self) -> None:
        for records in self._history.read():
            said = {record["event"] for record in records}
            self._begun, self._saved = self._begun or "start" in said, self._saved or "saved" in said
            self._on_records(records)

    def _missing_machine(self) -> bool:
        """Whether a machine has no workers, so that those on the other machines wait for it in vain."""
        if self._launch.lifeline is None or (size := self._log.stat().st_size) == self._log_read:
            return False
        self._log_read = size
        return unreached_machine(self._log, self._log_start) is not None


def pause_after(failures: int) -> float:
    """Seconds to wait before the next attempt after `failures` failures in a row: 1, 10, 60, 60, ..."""
    return min(LONGEST_PAUSE, 10 ** (failures - 1))
