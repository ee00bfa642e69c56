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


def training_norms(checkpoint: Path) -> TrainingNorms | None:
    """What the run of `checkpoint` recorded. None if the checkpoint is not in a run, or nothing was recorded."""
    stage = StagePaths(checkpoint.resolve().parent)
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
        by_step, rejected = _recorded(part, frozenset())
        norms += [(before + step, norm) for step, norm in sorted(by_step.items()) if norm is not None]
        before += max(by_step, default=0)
        num_rejected += rejected
    return TrainingNorms(tuple(norms), num_rejected) if norms else None


def _recorded(stage: StagePaths, followed: frozenset[Path]) -> tuple[dict[int, float | None], int]:
    """The gradient norms of a stage by step, and the number of rejected updates.

    Steps that were taken over from another run are read there, if it still exists; of several attempts at a step, the
    last counts.
    """
    by_step: dict[int, float | None] = {}
    num_rejected = 0
    for record in read_metrics(stage.metrics):
        if record["event"] == "train":
            by_step[record["step"]] = record.get("gradient_norm")
        elif record["event"] == "reused":
            source = StagePaths(Path(record["checkpoint"]).parent)
            if source.directory not in followed:
                theirs, rejected = _recorded(source, followed | {stage.directory})
                by_step |= {step: norm for step, norm in theirs.items() if step <= record["step"]}
                num_rejected += rejected
        num_rejected += record["event"] == "anomaly"
    return by_step, num_rejected
