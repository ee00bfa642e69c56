"""The trackers of one run, as the runner starts and ends them. They read what they show from metrics.jsonl."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any

from growctl.ladder.stage_plans import StagePlan
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.text.escaping import visible
from growctl.trackers.adapters import KINDS, TrackedRun, where

FINISH_SECONDS = 60.0
"""How long all trackers together may take to finish after the run. An MLflow store alone takes 10 s to be made."""

STOPPED_SECONDS = 10.0
"""The same for a run that was stopped or has failed."""

KILL_SECONDS = 5.0
"""How much longer their process may take to end."""


class Tracking:
    """The trackers of a run, while growctl runs it. Does nothing for a run without trackers."""

    def __init__(self, run: TrackedRun, schedule: Schedule, runs: RunsPaths, tell: Callable[[str], None]) -> None:
        """Starts nothing yet. `tell` takes what the user should know, also from another thread."""
        self._run, self._schedule, self._runs, self._tell = run, schedule, runs, tell
        self._paths = runs.run(run.name)
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = False

    def __enter__(self) -> "Tracking":
        """Starts the process of the trackers."""
        stores = {name: self._runs.tracker_store(name) for name in self._schedule.trackers}
        if not stores:
            return self
        self._paths.trackers_log.parent.mkdir(parents=True, exist_ok=True)
        with self._paths.trackers_log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "growctl.trackers.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is growctl's to handle
            )
        trackers = [
            {"name": name, "adapter": KINDS[name].adapter, "store": str(store.absolute())}
            for name, store in stores.items()
        ]
        directory = str(self._paths.directory.absolute())
        self._send({"run": asdict(self._run), "trackers": trackers, "directory": directory})
        assert self._process.stdin
        os.set_blocking(self._process.stdin.fileno(), False)  # a process that hangs must not stop the run
        self._reader = threading.Thread(target=self._pass_on_warnings, daemon=True)
        self._reader.start()
        self._tell(f"trackers: {', '.join(where(name, store, os.environ) for name, store in stores.items())}")
        return self

    def from_the_start(self, plan: StagePlan, plans: Sequence[StagePlan]) -> None:
        """The run is at the stage or release `plan`: trackers show what they do not have yet of its metrics.jsonl.

        `plans`: the plans of all stages, with the steps that the finished ones took.
        """
        self._send({"stage": plan.name, "num_steps": [other.num_steps for other in plans]})

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Ends the run in every tracker, and waits for them, within limits."""
        if not self._process:
            return
        self._ending = True
        status = "finished" if kind is None else "failed" if issubclass(kind, Exception) else "interrupted"
        seconds = FINISH_SECONDS if kind is None else STOPPED_SECONDS
        self._send({"status": status, "seconds": seconds})
        try:
            self._process.wait(seconds + KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._tell(f"the trackers did not finish in time and were stopped; see {self._paths.trackers_log}")
        finally:  # also when a signal ends the wait
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._reader.join(KILL_SECONDS)

    def _send(self, message: dict[str, Any]) -> None:
        """Hands a message to the process, unless that is gone or does not read."""
        if self._process and self._process.stdin:
            with suppress(OSError):
                os.write(self._process.stdin.fileno(), json.dumps(message).encode() + b"\n")

    def _pass_on_warnings(self) -> None:
        assert self._process
        assert self._process.stdout
        for line in self._process.stdout:
            self._tell(f"{visible(line.decode(errors='replace').strip())}; see {self._paths.trackers_log}")
        if not self._ending:
            self._tell(f"the trackers stopped; training goes on without them; see {self._paths.trackers_log}")
