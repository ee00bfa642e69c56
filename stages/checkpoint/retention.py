"""Chooses which checkpoints within a stage to keep, and deletes the others.

Imports no torch.
"""

import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from stages.checkpoint.manifest import verify_checkpoint
from stages.process.watchdog import remove_empty_stacks
from stages.stage_dir import StagePaths, removal_directory


def outdated(
    steps: Iterable[int], keep: int, every: int | None = None, due: int = 1, also: Collection[int] = ()
) -> list[int]:
    """The steps whose checkpoints to remove, oldest first: all but the newest `keep`, multiples of `every`, and `also`.

    `keep` is 1 or more. The newest multiple of `due` is also kept, however many checkpoints were saved on request
    since, because a rollback returns to it.
    """
    ordered = sorted(step for step in steps if step not in also)
    back = max((step for step in ordered if step % due == 0), default=None)
    return [step for step in ordered[:-keep] if step != back and (every is None or step % every)]


def prune(stage_directory: Path, keep: int, every: int | None = None, due: int = 1, also: Collection[int] = ()) -> None:
    """Removes the `outdated` checkpoints, after checking that the newest is complete, by the sizes of its files.

    Each checkpoint is first hidden by a single rename, so no visible checkpoint is ever incomplete. Hidden checkpoints
    that a killed process left behind are removed too. Raises CheckpointError if the newest checkpoint is incomplete.
    """
    found = StagePaths(stage_directory).checkpoints()
    if found:
        verify_checkpoint(list(found.values())[-1], hashes=False)
    for step in outdated(found, keep, every, due, also):
        os.rename(found[step], removal_directory(found[step]))
    clear_leftovers(stage_directory)


def clear_leftovers(stage_directory: Path) -> None:
    """Removes directories that a process was writing or removing when it died. Errors are ignored until next time."""
    for leftover in StagePaths(stage_directory).leftovers():
        shutil.rmtree(leftover, ignore_errors=True)


def clear_stage(stage_directory: Path) -> None:
    """Removes everything that dead attempts may have left in a complete stage, except non-empty stack files."""
    clear_leftovers(stage_directory)
    remove_empty_stacks(StagePaths(stage_directory).stacks)
