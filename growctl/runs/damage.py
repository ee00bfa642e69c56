"""Finds what is missing of a run, for example because a copy of it was interrupted."""

from collections.abc import Collection, Sequence
from pathlib import Path

from growctl.runs.stages import PlannedStage, StageStatus
from growctl.runs_dir import RunPaths
from stages.stage_dir import StagePaths

_AGAIN = "if this is a copy, copy the run again"


def missing_files(
    directory: Path, planned: Sequence[PlannedStage], stages: Sequence[StageStatus], ended: Collection[str]
) -> list[str]:
    """A note for each file of the run in `directory` that must be there and is not.

    `stages` are what was found of those `planned`; `ended` names the stages whose end the ledger records.
    """
    stages_folder = RunPaths(directory).stages
    if ended and not stages_folder.is_dir():
        return [f"{stages_folder} is missing: {_AGAIN}"]
    notes = []
    for plan, stage in zip(planned, stages, strict=True):
        paths = plan.paths(directory)
        if plan.name in ended and not paths.final.exists():
            notes.append(
                f"{paths.final} is missing, although the ledger records the end of its stage: {_AGAIN}; otherwise "
                "`growctl run` trains the stage again from the newest checkpoint that is there"
            )
        elif lacks_records(stage):
            notes.append(f"{paths.metrics} is missing: {_AGAIN}")
    return notes


def lacks_records(stage: StageStatus) -> bool:
    """Whether a finished stage has lost its metrics.jsonl, which no command can write again."""
    return stage.state == "done" and not (stage.directory and StagePaths(Path(stage.directory)).metrics.exists())
