"""Records what `growctl eval` found on a checkpoint of a run: in its stage, and in the run's ledger.

Only the process that holds a run's lock may write its ledger. So nothing is recorded while a run is training; the
results are then only printed.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from growctl.ledger.entries import ScoreEntry
from growctl.ledger.file import LedgerError
from growctl.ledger.ledger import Ledger
from growctl.ledger.lines import append_lines
from growctl.runs.directory import RunError
from growctl.runs.lock import hold
from growctl.runs_dir import RunPaths
from stages.checkpoint.manifest import manifest_hash
from stages.evaluate.results import Score
from stages.stage_dir import StagePaths

PATIENCE_SECONDS = 3.0
"""How long to wait for the lock of a run: another evaluation holds it for an instant, training for hours."""


class Place(NamedTuple):
    """Where a checkpoint is in a run."""

    run: RunPaths
    stage: str
    """As the ledger names it."""
    paths: StagePaths


class Recorded(NamedTuple):
    """Whether scores were recorded."""

    ledger: Path | None
    why_not: str | None = None
    """Why the ledger lacks the scores of a checkpoint of a run, for a message."""


def place_of(checkpoint: Path) -> Place | None:
    """The run and the stage that hold `checkpoint`; None for a checkpoint outside any run."""
    above = checkpoint.resolve().parent
    for directory in above.parents:
        run = RunPaths(directory)
        if not run.ledger.is_file():
            continue
        for _, name, stage in run.stages_found():
            for paths, recorded in ((stage, name), (stage.release, f"{name}/{stage.release.directory.name}")):
                if paths.directory.resolve() == above:
                    return Place(run, recorded, paths)
    return None


def record(checkpoint: Path, scores: Iterable[Score], settings: Mapping[str, Any]) -> Recorded:
    """Records `scores` of `checkpoint` if a run holds it that is not running.

    They are in the stage's file even if the ledger is broken: the run records them when it rebuilds the ledger.
    """
    place = place_of(checkpoint)
    if place is None:
        return Recorded(None)
    facts: dict[str, Any] = {
        "stage": place.stage,
        "checkpoint": checkpoint.resolve().name,
        "manifest": manifest_hash(checkpoint),
        "evaluated_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "settings": dict(settings),
    }
    entries = [ScoreEntry(**facts, **vars(score)) for score in scores]
    try:
        lock_is_held = retry_if_exception_type(RunError)
        for attempt in Retrying(
            retry=lock_is_held, stop=stop_after_delay(PATIENCE_SECONDS), wait=wait_fixed(0.1), reraise=True
        ):
            with attempt, hold(place.run.directory):
                append_lines(place.paths.scores, entries)
                with Ledger(place.run.ledger) as ledger:
                    ledger.record_scores(entries)
    except (RunError, LedgerError, OSError) as error:
        return Recorded(None, str(error))
    return Recorded(place.run.ledger)
