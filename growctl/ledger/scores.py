"""Scores of checkpoints: what `growctl eval` found, in a stage's scores.jsonl and in the ledger.

The file is written first. A run that rebuilds its ledger reads the scores from there again.
"""

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ScoreEntry:
    """One metric of one evaluation of a checkpoint."""

    stage: str
    """The stage as the ledger names it; for a release, `STAGE/release`."""
    checkpoint: str
    """The checkpoint's name in its stage: `final`, `initial`, `step_00001000`."""
    manifest: str
    """sha256 of the checkpoint's manifest.json."""
    evaluated_at: str
    """ISO 8601, in UTC; the same for all scores of one command."""
    task: str
    """A task of lm-evaluation-harness, `text`, or `context-4096`."""
    metric: str
    filter: str
    """How lm_eval extracted the answers; `none` elsewhere."""
    value: float | None
    """None if it was not finite."""
    standard_error: float | None = None
    num_samples: int | None = None
    """Examples of a task; tokens of a text."""
    num_shots: int | None = None
    version: str = ""
    """The version of the task."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What else the value depends on, as JSON values: text, context, stride, limit, dtype, version of lm_eval."""

    @property
    def evaluation(self) -> str:
        """Equal for the metrics of one evaluation, and for its repetitions on the same or another checkpoint."""
        return json.dumps([self.task, self.filter, self.num_shots, self.version, self.settings], sort_keys=True)


def position_metric(first: int, last: int) -> str:
    """The metric of the loss at the positions `first` to `last` of windows, both included."""
    return f"loss_at_{first}_to_{last}"


def positions_of(metric: str) -> tuple[int, int] | None:
    """The first and last position of such a metric; None for any other."""
    found = re.fullmatch(r"loss_at_(\d+)_to_(\d+)", metric)
    return (int(found[1]), int(found[2])) if found else None


def append_scores(path: Path, scores: Iterable[ScoreEntry]) -> None:
    """Appends a line for each score to the file `path`, and syncs it to disk. Ends a line that a crash cut off."""
    lines = [json.dumps(asdict(score)) + "\n" for score in scores]
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")
        file.writelines(line.encode() for line in lines)
        file.flush()
        os.fsync(file.fileno())


def read_scores(path: Path) -> list[ScoreEntry]:
    """The scores in the file `path`, oldest first; none if it is missing. Skips a line that was cut off by a crash."""
    if not path.is_file():
        return []
    names = {f.name for f in fields(ScoreEntry)}
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError, TypeError):
            values = json.loads(line)
            found.append(ScoreEntry(**{name: values[name] for name in names & values.keys()}))
    return found
