"""The trackers of one run, as the runner starts and ends them. They read what they show from metrics.jsonl."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any

from growctl.ladder.stage_plans import StagePlan, paths_of
from growctl.runs_dir import RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.trackers.adapters import ADAPTERS, TrackedRun
from growctl.trackers.process import TrackedStage

FINISH_SECONDS = 60.0
"""How long all trackers together may take to finish after the run. An MLflow store alone takes 10 s to be made."""

STOPPED_SECONDS = 10.0
"""The same for a run that was stopped or has failed."""


class Tracking:
    """The trackers of a run, while growctl runs it: a process for each. Does nothing for a run without trackers."""

    def __init__(self, run: TrackedRun, schedule: Schedule, runs: RunsPaths, tell: Callable[[str], None]) -> None:
        """Starts nothing yet. `tell` takes what the user should know, also from another thread."""
        self._run, self._schedule, self._runs, self._tell = run, schedule, runs, tell
        self._paths = runs.run(run.name)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._watchers: list[threading.Thread] = []

    def __enter__(self) -> "Tracking":
        """Starts the processes of the trackers."""
        names = list(dict.fromkeys(self._schedule.trackers))
        if not names:
            return self
        self._paths.trackers_log.parent.mkdir(parents=True, exist_ok=True)
        for name in names:
            adapter, store = ADAPTERS[name], self._runs.tracker_store(name).absolute()
            with self._paths.trackers_log.open("ab") as log:
                self._processes[name] = process = subprocess.Popen(
                    [sys.executable, "-m", "growctl.trackers.process"],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is growctl's to handle
                )
            memory = str(self._paths.tracker_memory(name).absolute())
            start = {"adapter": f"{adapter.__module__}:{adapter.__name__}", "store": str(store), "memory": memory}
            self._send(process, start | {"run": asdict(self._run)})
            assert process.stdin
            os.set_blocking(process.stdin.fileno(), False)  # a process that hangs must not stop the run
            self._watchers.append(threading.Thread(target=self._watch, args=(name, process), daemon=True))
            self._watchers[-1].start()
        self._tell(f"trackers: {', '.join(names)}, in {self._runs.tracker_store('')} unless your environment says else")
        return self

    def from_the_start(self, plan: StagePlan, plans: Sequence[StagePlan]) -> None:
        """The run is at the stage or release `plan`: trackers show what they do not have yet of its metrics.jsonl.

        `plans`: the plans of all stages, with the steps that the finished ones took.
        """
        before = [other for other in plans if other.index < plan.index or other.name == plan.branch_of]
        stage = TrackedStage(
            name=plan.name,
            index=plan.index,
            metrics=str(paths_of(self._paths, plan).metrics.absolute()),
            num_parameters=plan.num_parameters,
            first_step=plan.first_step,
            first_tokens=sum(other.budget_tokens for other in before),
            first_flops=sum(other.flops.total for other in before),
            tokens_per_step=plan.batch.tokens,
            step_flops=plan.step_flops.total,
            prefix="release/" if plan.branch_of else "",
        )
        for process in self._processes.values():
            self._send(process, {"stage": asdict(stage)})

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Ends the run in every tracker, and waits for them, within limits."""
        status = "finished" if kind is None else "failed" if issubclass(kind, Exception) else "interrupted"
        deadline = time.monotonic() + (FINISH_SECONDS if kind is None else STOPPED_SECONDS)
        for process in self._processes.values():
            self._send(process, {"status": status})
        try:
            for process in self._processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # also when a signal ends the wait
            for process in self._processes.values():
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        for watcher in self._watchers:
            watcher.join()

    def _send(self, process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
        """Hands a message to a process, unless that is gone or does not read."""
        assert process.stdin
        with suppress(OSError):
            os.write(process.stdin.fileno(), json.dumps(message).encode() + b"\n")

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        if process.wait():
            log = self._paths.trackers_log
            self._tell(f"tracker {name} failed or took too long and was stopped; training does not need it; see {log}")
