"""Which checkpoints within a stage are kept, and how the others go. No torch here."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from stages.checkpoint.manifest import verify_checkpoint
from stages.stage_dir import StagePaths, removal_directory


def outdated(steps: Iterable[int], keep: int, every: int | None = None, due: int = 1) -> list[int]:
    """The steps whose checkpoints go, oldest first: all but the newest `keep`, 1 or more, and multiples of `every`.

    The newest multiple of `due` stays too, however many were saved on request since: a rollback goes back to it.
    """
    ordered = sorted(steps)
    back = max((step for step in ordered if step % due == 0), default=None)
    return [step for step in ordered[:-keep] if step != back and (every is None or step % every)]


def prune(stage_directory: Path, keep: int, every: int | None = None, due: int = 1) -> None:
    """Removes the checkpoints that are `outdated`, once the newest is seen to be there in full, by its files' sizes.

    A checkpoint is hidden by one renaming before anything in it goes, so that none is ever there in part; what a death
    left hidden goes too. Raises CheckpointError where the newest is not whole.
    """
    found = StagePaths(stage_directory).checkpoints()
    if found:
        verify_checkpoint(list(found.values())[-1], hashes=False)
    for step in outdated(found, keep, every, due):
        os.rename(found[step], removal_directory(found[step]))
    clear_leftovers(stage_directory)


def clear_leftovers(stage_directory: Path) -> None:
    """Removes what was being written or removed when its process died. What will not go now goes another time."""
    for leftover in StagePaths(stage_directory).leftovers():
        shutil.rmtree(leftover, ignore_errors=True)


def clear_stage(stage_directory: Path) -> None:
    """Removes all that attempts which died may have left in a stage that is complete, but stacks that were written."""
    clear_leftovers(stage_directory)
    stage = StagePaths(stage_directory)
    for request in stage.save_requests():
        request.unlink(missing_ok=True)
    stacks = stage.stacks
    for empty in (path for path in stacks.glob("*.txt") if not path.stat().st_size):
        empty.unlink(missing_ok=True)
    if stacks.is_dir() and not any(stacks.iterdir()):
        stacks.rmdir()
