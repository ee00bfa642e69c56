"""The cost ledger: what a run spent, in one append-only SQLite file that only the holder of the run's lock writes.

Rows are derived from a stage's metrics.jsonl (growctl/ledger/books.py) and appended; triggers reject changes. `growctl
eval` appends its scores, which scores.jsonl holds too.
Sums are never stored. The step at which a later attempt resumed shows which work was replayed. Replayed work stays in
the ledger.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from growctl.ledger.books import StageBooks
from growctl.ledger.entries import (
    AnomalyEntry,
    AttemptEntry,
    Cost,
    EvaluationEntry,
    RunEntry,
    ScoreEntry,
    SplitCost,
    StageEntry,
    WorkEntry,
)
from growctl.ledger.file import LedgerError, LedgerFile, NothingRecorded

_MAY_CHANGE = (
    *("name", "control_of", "schedule", "dataset", "run_id", "ladder_id", "decays", "caveats"),
    *("group", "overrides"),
)
"""Fields of a run that may differ when the run is recorded again."""


class Ledger(LedgerFile):
    """One run's ledger; a context manager."""

    def __init__(self, path: Path, read_only: bool = False) -> None:
        super().__init__(path, read_only)
        for name in ("work", "evaluations") if read_only else ():  # a snapshot, which does not change
            setattr(self, name, cache(getattr(self, name)))

    # Written by the runner; scores by `growctl eval`.

    def record_run(self, run: RunEntry, stages: Sequence[StageEntry]) -> None:
        """Records the run and all stages of its schedule, before any work. Recording them again changes nothing.

        Raises LedgerError if they differ from those recorded. Only the fields in _MAY_CHANGE may differ: names, paths,
        ids, sets, decays and caveats, and the launch. `run` keeps the first values, `relaunched` knows the launch's.
        """
        now = {"run": asdict(run)} | {f"stage {stage.name}": asdict(stage) for stage in stages}
        with self.transaction():
            if not self.query("SELECT 1 FROM run"):
                for entry in (run, *stages):
                    self.append(entry)
            held = {"run": asdict(self.run())} | {f"stage {stage.name}": asdict(stage) for stage in self.stages()}
        if list(held) != list(now):
            raise LedgerError(f"{self.path} has {', '.join(held)}; now there are {', '.join(now)}")
        for what, values in held.items():
            for name, value in values.items():
                if name not in _MAY_CHANGE and (differing := _differing(name, value, now[what][name])):
                    raise LedgerError(
                        f"{self.path}: {what} was recorded with {differing}; use another run name for other values"
                    )
        if run.conditions != self.entries(RunEntry)[-1].conditions:
            with self.transaction():
                self.append(replace(self.run(), conditions=run.conditions), once=True)

    def books(self, stage: str) -> StageBooks:
        """The books for a stage's metrics.jsonl; raises LedgerError for a stage that was not recorded."""
        return StageBooks(self, self._stage(stage))

    def record_scores(self, scores: Iterable[ScoreEntry]) -> None:
        """Records scores of checkpoints. Recording them again changes nothing.

        Raises LedgerError for a stage that was not recorded.
        """
        with self.transaction():
            for score in scores:
                self._stage(score.stage)
                self.append(score, once=True)

    # Read from the ledger.

    def run(self) -> RunEntry:
        """The run as it was first recorded; raises NothingRecorded if there is none yet."""
        runs = self.entries(RunEntry)
        if not runs:
            raise NothingRecorded(self.path)
        return runs[0]

    def relaunched(self) -> list[str]:
        """The conditions of the run's launch that changed when it resumed."""
        first, *others = (run.conditions for run in self.entries(RunEntry))
        return sorted({key for other in others for key in first | other if first.get(key) != other.get(key)})

    def machines(self) -> list[tuple[str, int, str]]:
        """The device, the number of devices and the precision of all work, in order, also of reused work, which has the
        costs of the machine that did it."""
        work = self.entries(WorkEntry)
        return list(dict.fromkeys((row.device, row.num_devices, row.precision) for row in work))

    def stages(self) -> list[StageEntry]:
        """Every stage of the schedule, in order, each followed by its release if it has one."""
        return self.entries(StageEntry)

    def _stage(self, name: str) -> StageEntry:
        for stage in self.stages():
            if stage.name == name:
                return stage
        raise LedgerError(f"{self.path}: no stage {name!r} is recorded here")

    def last_attempt(self, stage: str) -> int:
        """The highest recorded attempt of a stage; 0 before the first."""
        attempts = self._attempts(stage)
        return attempts[-1].attempt if attempts else 0

    def _attempts(self, stage: str) -> list[AttemptEntry]:
        return sorted(self.entries(AttemptEntry, stage), key=lambda attempt: attempt.attempt)

    def finished(self, stage: str) -> bool:
        """Whether the last attempt of the stage reached its end, or the final evaluation and every step are booked."""
        ended = "SELECT 1 FROM work WHERE stage = :stage AND closed_by = 'end' AND attempt = :last LIMIT 1"
        if self.query(ended, stage=stage, last=self.last_attempt(stage)):
            return True
        if not self.query("SELECT 1 FROM evaluation WHERE stage = :stage AND point = 'final' LIMIT 1", stage=stage):
            return False
        steps = self.stage_cost(stage).trained.steps
        return any(e.point == "final" and e.step <= steps for e in self.evaluations(stage))

    def stage_cost(self, stage: str) -> SplitCost:
        """The cost of a stage so far, from its work rows. A row that was repeated in part is split by its steps."""
        kept, rolled_back, replayed, reused = (list[Cost]() for _ in range(4))
        for work in self.work(stage):
            (kept if work.paid_by is None else reused).append(work if work.kept == 1.0 else work.share(work.kept))
            if work.paid_by is None and work.kept < 1.0:
                rolled_back.append(work.share(work.rolled_back))
                replayed.append(work.share(1.0 - work.kept - work.rolled_back))
        return SplitCost(*(Cost.total(costs) for costs in (kept, rolled_back, replayed, reused)))

    def work(self, stage: str) -> list[WorkEntry]:
        """The work of a stage, in the order in which it was booked, each with what became of its steps."""
        attempts = self._attempts(stage)
        spoiled = {a.attempt for a in self.anomalies(stage) if a.action == "rollback"}
        resumed = [(later.resumed_from, before.attempt in spoiled) for before, later in pairwise(attempts)]
        after = {attempt.attempt: resumed[number:] for number, attempt in enumerate(attempts)}
        rows = self.entries(WorkEntry, stage)
        return [split_by_resumes(row, later) if (later := after.get(row.attempt)) else row for row in rows]

    def holds(self, other: "Ledger") -> bool:
        """Whether this ledger has every row of `other`, which may be an earlier copy of it."""
        entry, sha256 = other.last_entry()
        same = "SELECT 1 FROM record WHERE entry = :entry AND sha256 = :sha256"
        return not entry or bool(self.query(same, entry=entry, sha256=sha256))

    def evaluations(self, stage: str) -> list[EvaluationEntry]:
        """The stage's evaluations that still count, oldest first; the last one where a step was evaluated again."""
        attempts, spent = self._attempts(stage), Counter[int]()
        for work in self.work(stage):
            spent[work.attempt] += work.steps
        ends = {a.attempt: [later.resumed_from for later in attempts[n:]] for n, a in enumerate(attempts, 1)}
        begins = {a.attempt: sum(spent[b.attempt] for b in attempts[:n]) - a.first_step for n, a in enumerate(attempts)}
        step_flops = self._stage(stage).step_flops.total
        latest = {}
        for row in sorted(self.entries(EvaluationEntry, stage), key=_when):
            if row.step <= min(ends[row.attempt], default=row.step):
                latest[row.step, row.point] = replace(row, flops=(begins[row.attempt] + row.step) * step_flops)
        return sorted(latest.values(), key=_when)

    def scores(self, stage: str) -> list[ScoreEntry]:
        """The scores of a stage's checkpoints, oldest first."""
        return self.entries(ScoreEntry, stage)

    def anomalies(self, stage: str) -> list[AnomalyEntry]:
        """The stage's anomalies, in the order in which they occurred."""
        return sorted(self.entries(AnomalyEntry, stage), key=lambda anomaly: (anomaly.attempt, anomaly.seconds))

    def rollbacks(self, stage: str) -> list[tuple[int, int]]:
        """The stage's rollbacks in their order: the first step and the number of steps whose data each skips."""
        return [(a.first_step or 0, a.num_steps or 0) for a in self.anomalies(stage) if a.action == "rollback"]


def _when(evaluation: EvaluationEntry) -> tuple[int, int]:
    return evaluation.attempt, evaluation.step


def split_by_resumes(work: WorkEntry, later: Sequence[tuple[int, bool]]) -> WorkEntry:
    """`work` with what became of its steps. `later`: where each later attempt resumed, and whether a rollback had
    caused it."""
    first, last, rolled_back = work.first_step, work.last_step, 0
    num_steps = last - first
    if not num_steps:
        causes = [own for step, own in later if step <= last]
        return replace(work, kept=0.0, rolled_back=float(causes[0])) if causes else work
    for step, own in later:
        cut = max(first, min(step, last))
        rolled_back += (last - cut) * own
        last = cut
    return replace(work, kept=(last - first) / num_steps, rolled_back=rolled_back / num_steps)


def _differing(name: str, held: Any, now: Any) -> str:
    """What differs between two values of the entry `name`, of two blocks the keys that do; empty if nothing does.

    How a run is launched may change when it resumes.
    """
    if not (isinstance(held, dict) and isinstance(now, dict)):
        return "" if held == now else f"{name} {held!r}, now it is {now!r}"
    paths = (path for path in sorted(held | now) if held.get(path) != now.get(path) and not path.startswith("launch."))
    return "; ".join(f"{path} {held.get(path)!r}, now it is {now.get(path)!r}" for path in paths)
