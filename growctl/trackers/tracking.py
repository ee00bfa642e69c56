"""The trackers of one run, as the runner feeds them with the records that it reads from metrics.jsonl."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType

from growctl.ladder.stage_plans import StagePlan
from growctl.runs_dir import RunPaths, RunsPaths
from growctl.schedule.blocks import Schedule
from growctl.trackers.feed import Feed
from growctl.trackers.kinds import KINDS, where
from growctl.trackers.process import Memory
from growctl.trackers.protocol import Status, TrackedRun
from growctl.trackers.records import Part, Record
from model.errors import Failure, UserError

FINISH_SECONDS = 60.0
"""How long all trackers together may take to finish after the run. An MLflow store alone takes 10 s to be made."""

STOPPED_SECONDS = 10.0
"""The same for a run that was stopped or has failed."""


class Tracking:
    """The trackers of a run, while growctl runs it. Does nothing for a run without trackers."""

    def __init__(self, run: TrackedRun, schedule: Schedule, runs: RunsPaths, tell: Callable[[str], None]) -> None:
        """Starts nothing yet."""
        self._run, self._schedule, self._runs, self._tell = run, schedule, runs, tell
        self._paths: RunPaths = runs.run(run.name)
        self._feeds: list[Feed] = []
        self._part: Part
        self._read = 0
        """Records of the present stage that were read since `from_the_start`."""
        self._given: dict[str, dict[str, int]] = {}
        """By tracker and stage: how many records the tracker was given, now or at an earlier start."""

    def __enter__(self) -> "Tracking":
        """Starts the trackers' processes."""
        for name in self._schedule.trackers:
            store = self._runs.tracker_store(name)
            memory = self._paths.tracker_memory(name)
            arguments = [KINDS[name].target, str(store.absolute()), str(memory.absolute())]
            try:
                feed = Feed(name, arguments, asdict(self._run), self._paths.tracker_log(name), self._tell)
            except OSError as error:
                self._tell(f"tracker {name} does not start: {error}; training goes on without it")
                continue
            self._given[name] = Memory(memory).records
            self._feeds.append(feed)
        if self._feeds:
            places = (where(feed.name, self._runs.tracker_store(feed.name), os.environ) for feed in self._feeds)
            self._tell(f"trackers: {', '.join(places)}")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Ends the run in every tracker, and waits for them, within limits."""
        if not self._feeds:
            return
        status: Status = "finished" if kind is None else "failed" if issubclass(kind, Exception) else "interrupted"
        message = {"status": status, "table": self._table()}
        deadline = time.monotonic() + (FINISH_SECONDS if kind is None else STOPPED_SECONDS)
        for feed in self._feeds:
            feed.end(message)
        for feed in self._feeds:
            feed.wait(deadline)

    def from_the_start(self, plan: StagePlan, plans: Sequence[StagePlan]) -> None:
        """The records that follow are those of the stage or release `plan`, from the first line of its metrics.jsonl.

        `plans`: the plans of all stages, with the steps that the finished ones took.
        """
        if self._feeds:
            self._part, self._read = part_of(plan, plans, self._schedule), 0

    def records(self, records: Sequence[Record]) -> None:
        """Gives the trackers what they do not have yet of the next records."""
        for feed in self._feeds:
            given = self._given[feed.name]
            first = max(self._read, given.get(self._part.stage, 0))
            if new := records[first - self._read :]:
                feed.offer({"part": asdict(self._part), "first": first, "records": list(new)})
                given[self._part.stage] = first + len(new)
        self._read += len(records)

    def _table(self) -> str:
        """The report's rows of this run, as CSV; empty if its ledger cannot be read."""
        from growctl.report.documents import stages_csv
        from growctl.runs.read import read_run

        with suppress(UserError, Failure, OSError):
            return stages_csv([read_run(self._paths.ledger)])
        return ""


def part_of(plan: StagePlan, plans: Sequence[StagePlan], schedule: Schedule) -> Part:
    """What trackers must know of a stage or a release. `plans`: all stages."""
    before = [other for other in plans if other.index < plan.index or other.name == plan.branch_of]
    base = schedule.base
    sizes = [base.num_parameters if base else None, *(other.num_parameters for other in plans)]
    return Part(
        stage=plan.name,
        index=plan.index,
        num_parameters=plan.num_parameters,
        is_release=plan.branch_of is not None,
        parameters_before=sizes[plan.index] if plan.is_grown else None,
        first_step=plan.first_step,
        first_tokens=((base and base.tokens) or 0) + sum(other.budget_tokens for other in before),
        first_flops=(schedule.base_flops or 0.0) + sum(other.flops.total for other in before),
        step_tokens=plan.tokens_per_step,
        step_flops=plan.step_flops.total,
        ramp_steps=plan.ramp_steps,
        anneal_steps=plan.anneal_steps or 0,
    )
