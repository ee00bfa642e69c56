"""One attempt at a stage: its workers started and followed to their end, and what became of them."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from growctl.launch.machines import Launch
from growctl.launch.worker_logs import ending_signal, failure_reason, logged_reason, signal_reason
from growctl.launch.workers import Workers
from growctl.run import signals
from growctl.run.history import StageHistory
from growctl.text.formatting import duration
from stages.metrics import Record
from stages.process.save_request import RequestFile
from stages.process.watchdog import Stalls
from stages.spec import TrainSpec
from stages.stage_dir import StagePaths

POLL_SECONDS = 0.2
STALL_POLL_SECONDS = 3.0
SETTLE_SECONDS = 3.0
"""From the first rank that writes its stacks to the end of them all: the others write theirs."""


class Outcome(NamedTuple):
    """What became of an attempt."""

    kind: Literal["ended", "refused", "crashed", "hung"]
    """ended: the workers left well, which says nothing of the stage. refused: a worker said what is wrong, and it would
    be wrong again. crashed, hung: another attempt may do better."""

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
        """`history`, read so far, goes on with what the workers say; `on_records` gets that as they say it.

        `grace`: seconds that they have to save.
        """
        self._spec = spec
        self._launch = launch
        self._grace = grace
        self._on_records = on_records
        self._tell = tell
        stage = StagePaths(Path(spec.directory))
        self._log = stage.log
        self._history = history
        self._request = RequestFile(Path(spec.save_request)) if spec.save_request else None
        self._stalls = Stalls(stage.directory, spec.attempt, spec.hang_seconds)
        self._last_stall_poll = time.monotonic()
        self._begun = self._saved = False
        self._once_begun = history.begun

    def run(self) -> Outcome:
        """Starts the workers and follows them to their end.

        A signal that stops growctl asks them to save and to leave; after the time of grace, and at a second signal at
        once, they are ended. Raises signals.Stopped once they are gone; also where a cluster told them to leave.
        """
        log_start = self._log.stat().st_size if self._log.exists() else 0
        if self._request:
            self._request.start()
        try:
            with signals.noted() as stop, Workers(self._launch, self._log) as workers:
                hung = self._follow(workers, stop)
                if hung:
                    workers.kill()
        finally:
            if self._request:
                self._request.end()
            where = self._stalls.described()
            self._stalls.tidy()
            self._read()
        if self._saved:  # a cluster told them itself
            raise signals.Stopped(signal.SIGTERM)
        if hung:
            return Outcome("hung", f"no rank did anything for {duration(self._spec.hang_seconds)}: {where}")
        if workers.exit_code == 0:
            return Outcome("ended")
        if told := logged_reason(self._log, log_start):
            return Outcome("refused", told)
        ended_by = ending_signal(workers.exit_code)
        reason = signal_reason(ended_by) if ended_by else failure_reason(self._log, log_start)
        return Outcome("crashed" if self._begun or self._once_begun else "refused", reason)

    def _follow(self, workers: Workers, stop: signals.Note) -> bool:
        """Returns when the workers are gone or are to be ended; whether that is because they hang."""
        deadline: float | None = None
        while True:
            running = workers.running()
            self._read()
            if not running:
                return False
            if stop.number is not None and deadline is None:
                if not (self._request and self._begun):
                    return False  # there is nothing yet to save
                deadline = time.monotonic() + self._grace
                self._request.make()
                self._tell("stopping: the workers save first; once more to stop at once")
            if deadline is not None and time.monotonic() >= deadline:
                self._tell(f"the workers have not saved within {duration(self._grace)}; stopping them")
                return False
            if deadline is None and self._stalled():
                time.sleep(SETTLE_SECONDS)
                return True
            time.sleep(POLL_SECONDS)

    def _read(self) -> None:
        for records in self._history.read():
            said = {record["event"] for record in records}
            self._begun, self._saved = self._begun or "start" in said, self._saved or "saved" in said
            self._on_records(records)

    def _stalled(self) -> bool:
        now = time.monotonic()
        if now - self._last_stall_poll < STALL_POLL_SECONDS:
            return False
        self._last_stall_poll = now
        return self._stalls.noticed()
