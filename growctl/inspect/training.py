"""Reads the gradient norms that a checkpoint's training recorded. Imports no torch."""

import statistics
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from growctl.runs_dir import RunPaths
from stages.metrics import read_metrics
from stages.stage_dir import StagePaths


@dataclass(frozen=True)
class TrainingNorms:
    """The gradient norms of a run's log lines, before clipping, up to the checkpoint.

    Training that the run took over from another counts, as far as the other run still exists."""

    norms: tuple[tuple[int, float], ...]
    """(steps done since the run's start, norm of that step's gradient)."""

    num_rejected: int
    """Steps whose update the anomaly guard rejected, because the loss was not finite or jumped."""

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
    """What the run of `checkpoint`, written after `step` steps of its stage, recorded until then.

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
        if part == stages[-1]:
            recorded = recorded.until(step)
        norms += [(before + done, norm) for done, norm in sorted(recorded.norms.items()) if norm is not None]
        before += max(recorded.norms, default=0)
        num_rejected += len(recorded.rejected)
    return TrainingNorms(tuple(norms), num_rejected) if norms else None


@dataclass(frozen=True)
class _Recorded:
    """What the training of one stage recorded, by step of the stage."""

    norms: dict[int, float | None]
    rejected: set[int]
    """The steps whose updates the anomaly guard rejected."""

    def until(self, step: int) -> "_Recorded":
        """The part of it up to `step`."""
        norms = {done: norm for done, norm in self.norms.items() if done <= step}
        return _Recorded(norms, {done for done in self.rejected if done <= step})


def _recorded(stage: StagePaths, followed: frozenset[Path]) -> _Recorded:
    """The records of a stage.

    Steps that were taken over from another run are read there, if it still exists; of several attempts at a step, the
    last counts.
    """
    found = _Recorded({}, set())
    for record in read_metrics(stage.metrics):
        if record["event"] == "train":
            found.norms[record["step"]] = record.get("gradient_norm")
        elif record["event"] == "anomaly":
            found.rejected.add(record["step"])
        elif record["event"] == "reused":
            source = StagePaths(Path(record["checkpoint"]).parent)
            if source.directory not in followed:
                theirs = _recorded(source, followed | {stage.directory}).until(record["step"])
                found.norms.update(theirs.norms)
                found.rejected.update(theirs.rejected)
    return found
