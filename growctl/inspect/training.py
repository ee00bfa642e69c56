"""Reads the gradient norms that a checkpoint's training recorded. Imports no torch."""

import statistics
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from growctl.runs_dir import RunPaths
from stages.metrics import read_metrics
from stages.stage_dir import StagePaths


@dataclass(frozen=True)
class TrainingNorms:
    """The gradient norms of a run's log lines, before clipping, over its stages up to the checkpoint's own.

    Training that the run took over from another counts, as far as the other run still exists."""

    norms: tuple[tuple[int, float], ...]
    """(steps done since the run's start, norm of that step's gradient)."""

    num_rejected: int
    """Updates that the anomaly guard rejected, because the loss was not finite or jumped."""

    @property
    def median(self) -> float:
        """The norm of a typical step."""
        return statistics.median(norm for _, norm in self.norms)

    @property
    def largest_ratio(self) -> float | None:
        """The largest norm over the median. None if the median is 0."""
        return max(norm for _, norm in self.norms) / self.median if self.median else None

    @property
    def step_ratio(self) -> float | None:
        """The median factor, up or down, between one log line and the next: 1 means that norms do not change."""
        values = [norm for _, norm in self.norms if norm > 0]
        factors = [max(a, b) / min(a, b) for a, b in pairwise(values)]
        return statistics.median(factors) if factors else None


def training_norms(checkpoint: Path, step: int) -> TrainingNorms | None:
    """What the run of `checkpoint`, after `step` steps of its stage, recorded up to there.

    None if the checkpoint is not in a run, or nothing was recorded.
    """
    checkpoint = checkpoint.resolve()
    stage = StagePaths(checkpoint.parent)
    if checkpoint == stage.initial:
        step = 0  # a checkpoint that was not grown has the step of the stage that wrote it
    stages = [found for _, _, found in RunPaths(stage.directory.parent.parent).stages_found()]
    directories = [found.directory for found in stages]
    if stage.directory in directories:
        stages = stages[: directories.index(stage.directory) + 1]
    elif stage.metrics.is_file():
        stages = [stage]  # a release
    else:
        return None
    norms: list[tuple[int, float]] = []
    before = num_rejected = 0
    for part in stages:
        recorded = _recorded(part, frozenset())
        if part is stages[-1]:
            recorded = recorded.between(0, step)
        norms += [(before + done, norm) for done, norm in sorted(recorded.norms.items()) if norm is not None]
        before += max(recorded.norms, default=0)
        num_rejected += len(recorded.rejected)
    return TrainingNorms(tuple(norms), num_rejected) if norms else None


class _Recorded(NamedTuple):
    """What a stage recorded."""

    norms: dict[int, float | None]
    """Gradient norms by step."""

    rejected: set[tuple[int, int]]
    """Rejected updates: the step, and the attempt if it rolled back, else 0. Other data follows a rollback, so that
    the step may be rejected again; any other rejection is seen again when the step is replayed."""

    def between(self, first: int, last: int) -> "_Recorded":
        """What was recorded after step `first`, up to step `last`."""
        norms = {step: norm for step, norm in self.norms.items() if first < step <= last}
        return _Recorded(norms, {(step, attempt) for step, attempt in self.rejected if first < step <= last})


def _recorded(stage: StagePaths, followed: frozenset[Path]) -> _Recorded:
    """What `stage` recorded; of several attempts at a step, the norm of the last counts.

    Steps that were taken over from another run are read there, if it still exists.
    """
    found = _Recorded({}, set())
    for record in read_metrics(stage.metrics):
        step = record["step"]
        if record["event"] == "train":
            found.norms[step] = record.get("gradient_norm")
        elif record["event"] == "anomaly":
            found.rejected.add((step, record["attempt"] if record["action"] == "rollback" else 0))
        elif record["event"] == "reused":
            source = StagePaths(Path(record["checkpoint"]).parent)
            if source.directory not in followed:
                theirs = _recorded(source, followed | {stage.directory}).between(record["resumed_from"] or 0, step)
                found.norms.update(theirs.norms)
                found.rejected.update(theirs.rejected)
    return found
